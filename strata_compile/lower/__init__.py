"""Stages to programs: lists of kernel calls whose scratch has names, but no place yet.

Reading order: `facts.py` (what every rule may ask), `calls.py` (a call and its operands),
`place.py` (where an operator is lowered to, and what a rule is), `rules.py` (the rule of every type
of operator) with `attention.py` and `copies.py`, `drafts.py` (the drafter's part), `programs.py`
(kind by kind), `prune.py` (drops calls whose results nobody reads).
"""
