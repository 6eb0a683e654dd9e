"""take_table: the first node of every program; fetches the launch's table from the ring."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.spec import THREADS, Arg, Bound, Geometry, KernelSpec, Region, write
from strata_kernels.table import LAYOUT


@dataclass(frozen=True)
class Params:
    """`rows` of this program; `entries` of the ring; `stride` of one entry, in int32 words."""

    rows: int
    entries: int
    stride: int


def args(p: Params) -> tuple[Arg, ...]:
    """The ring in pinned host memory, the stage's counter, and the table that others read."""
    return (
        Arg("ring", "i32", (p.entries, p.stride), reads=Region.RING_ENTRY),
        Arg("counter", "i32", (1,), reads=Region.WHOLE, writes=Region.WHOLE),
        write("table", LAYOUT.words(p.rows), dtype="i32"),
    )


def geometry(p: Params) -> Geometry:
    """One block copies; its first thread counts."""
    return Geometry((1, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """table = ring[counter mod entries]; counter += 1."""
    counter = bound["counter"]
    entry = int(counter[0]) % p.entries
    bound["table"].copy_(bound["ring"][entry, : LAYOUT.words(p.rows)])
    counter += 1


SPEC = KernelSpec("take_table", Params, args, geometry, reference)
