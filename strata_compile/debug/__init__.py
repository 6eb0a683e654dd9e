"""Looks into a bundle without running it: strata-inspect.

Reading order: `costs.py` (bytes that a program touches, and the least time that they take),
`kernels.py` (what compiled kernels take of a multiprocessor), `describe.py` (all that is shown, as
a record), `tables.py` (the record as tables), `dot.py` (programs as a graph for Graphviz),
`simulate.py` (the schedule on a clock), `cli.py` (the command).
"""
