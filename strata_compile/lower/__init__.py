"""Stages to programs: lists of kernel calls whose scratch has names, but no place yet.

Reading order: `facts.py` (what every rule may ask), `calls.py` (a call and its operands),
`rules.py` (operator to kernel calls), `drafts.py` (the drafter's part), `programs.py` (kind by
kind), `prune.py` (drops calls whose results nobody reads).
"""
