"""logits_hash: 64 bits that change with any bit of a row's logits; identity is of bits.

h = Σ_i a_i · bits(x_i) mod 2^64, bits as int32 and a_i = splitmix64's i-th output, made odd: the
multilinear hash (Dietzfelbinger, 1996), whose odd factors let no single difference vanish. A sum
has no order, so that any split of the row gives the same hash: each slice of the vocabulary has a
part of it, and `verdict` adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import live_rows, put_rows, view
from strata_kernels.lazy import torch
from strata_kernels.spec import (
    THREADS,
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    padded,
    read,
    table_arg,
    write,
)

#: Tokens of one slice.
SLICE = 4096


@dataclass(frozen=True)
class Params:
    """`rows` and the vocabulary's size."""

    rows: int
    vocab: int

    @property
    def slice(self) -> int:
        """Tokens of one slice."""
        return SLICE

    @property
    def parts(self) -> int:
        """Slices of the vocabulary."""
        return -(-self.vocab // SLICE)


def args(p: Params) -> tuple[Arg, ...]:
    """logits (rows, vocab), and of each row the parts of its hash."""
    return (
        table_arg(p.rows),
        read("logits", padded(p.rows), p.vocab),
        write("hashes", padded(p.rows), p.parts, dtype="i64"),
    )


def _signed(x: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    return x - (1 << 64) if x >> 63 else x


def _xor_shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x ^ (x >> bits), the shift filling with zeros."""
    return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))


def factors(count: int) -> torch.Tensor:
    """splitmix64 of seed 0 (Steele, Lea and Flood, 2014), made odd; int64, shape (count,)."""
    x = torch.arange(1, count + 1, dtype=torch.int64) * _signed(0x9E3779B97F4A7C15)
    x = _xor_shifted(x, 30) * _signed(0xBF58476D1CE4E5B9)
    x = _xor_shifted(x, 27) * _signed(0x94D049BB133111EB)
    return _xor_shifted(x, 31) | 1


def row_parts(logits: torch.Tensor) -> torch.Tensor:
    """The parts of each row's hash, int64 (rows, slices), of float32 logits (rows, vocab)."""
    bits = logits.view(torch.int32).to(torch.int64).mul_(factors(logits.shape[1]))
    starts = range(0, logits.shape[1], SLICE)
    return torch.stack([bits[:, start : start + SLICE].sum(-1) for start in starts], -1)


def row_hashes(logits: torch.Tensor) -> torch.Tensor:
    """One int64 hash for each row of float32 logits (rows, vocab)."""
    return row_parts(logits).sum(-1)


def geometry(p: Params) -> Geometry:
    """A block for each row and slice."""
    return Geometry((p.rows, p.parts, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """hashes[i] = parts of the hash of the logits of live row i; zeros for inert rows."""
    rows = live_rows(view(bound, p.rows).row("slot"))
    put_rows(bound["hashes"], rows, row_parts(bound["logits"][rows].contiguous()))


SPEC = KernelSpec("logits_hash", Params, args, geometry, reference)
