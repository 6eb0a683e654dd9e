"""Drops the calls whose results nobody reads: the last layer's end, in a program without a head."""

from __future__ import annotations

from strata_compile.lower.calls import LoweredCall, Named


def prune(calls: list[LoweredCall]) -> tuple[LoweredCall, ...]:
    """The calls that write a buffer, and those whose scratch a kept call reads; order is kept."""
    kept: list[LoweredCall] = []
    needed: set[str] = set()
    for call in reversed(calls):
        operands = [(arg, call.operands[arg.name]) for arg in call.args]
        useful = any(
            arg.writes and (isinstance(o, Named) or o.name in needed) for arg, o in operands
        )
        if useful:
            kept.append(call)
            needed |= {o.name for arg, o in operands if arg.reads and not isinstance(o, Named)}
    return tuple(reversed(kept))
