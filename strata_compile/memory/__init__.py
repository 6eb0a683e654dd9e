"""Lifetimes to offsets.

Reading order: `offsets.py` (knows no graphs: lifetimes in, offsets out), `scratch.py` (a program's
lifetimes), `plan.py` (every arena and buffer), `place.py` (programs with their places).
"""
