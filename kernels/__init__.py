"""One file per kernel: its declaration (params, arguments, accesses) and its reference.

Reading order: `table.py` (what a launch may say), `spec.py` (what a kernel declares), `regions.py`
(which elements an access touches), `lazy.py` (torch at its first use), `quants.py` (the stored
types that a GPU reads), `arithmetic.py`, `chunks.py` and `philox.py` (arithmetic that kernels
share); then the kernels in the order in which a window meets them: `take_table`, `embed`,
`handoff_read`, `rmsnorm`, `products` (how a matrix is shared out), `linear`, `linears`,
`rope_store`, `attention`, `attention_merge`, `prompt_attention`, `swiglu`, `gated`,
`handoff_write`, `store_tokens`, `logits_hash`, `sample`, `verdict`; those of the drafter:
`hidden_store`, `hidden_load`, `concat`, `draft_back`, `draft_first`, `draft_pick`; `copy_cells`,
`copy_state`; last `registry.py`, the list of them all, `render.py` (their templates to source), and
`selftest.py` (does torch keep a row's bits on this machine?).
"""
