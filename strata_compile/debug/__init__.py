"""Looks into a bundle without running it: strata-inspect.

Reading order: `costs.py` (bytes that a program touches, and the least time that they take),
`describe.py` (all that is shown: a record and its tables), `dot.py` (programs as a graph for
Graphviz), `cli.py` (the command).
"""
