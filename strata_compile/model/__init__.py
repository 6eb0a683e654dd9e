"""GGUF file to model graph.

Reading order: `ops.py` (the operators), `graph.py` (the graph), `verify.py` (what is legal),
`tensors.py` (checked reading of a file), `llama.py` (a family), `companion.py` (does a drafter's
file follow this model), `nextn.py` (the family's NextN layer), `build.py` (picks the family).
"""
