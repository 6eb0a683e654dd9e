"""One row of a kernel in programs of any size, at any place, among random company.

Company is everything that the row's own declarations do not name: other rows of the inputs, other
segments of the table, other slots' cells, entries of side inputs that it has not chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernel_case import Case, Segment, bind, bits, make_table, random_values, row_defaults
from kernel_examples import CHUNKS, row_args, with_rows
from strata_kernels.registry import KERNELS
from strata_kernels.spec import CHUNK, Region
from strata_kernels.table import ROW_LIMIT, Ints

SLOT, TOKEN = 2, 77  #: of the row; its company has slots 0 and 3

#: What the row asks for; every kernel finds its fields here.
OWN = {
    "handoff_row": 150,
    "state_in": 5,
    "mask": 1,
    "bias": 2,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 0.95,
    "min_p": 0.01,
    "repeat_penalty": 1.2,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.05,
    "penalty_last": 100,
    "seed_low": 12345,
    "seed_high": -6789,
}


def alone(length: int) -> Ints:
    """The table that has the row and nothing else; `length` cells are its history."""
    return make_table(1, [Segment(SLOT, length - 1, (TOKEN,), fields=OWN)])


def in_company(rng: np.random.Generator, rows: int, place: int, length: int) -> Ints:
    """The row at `place`; beside it rows of its own slot, of two others, and inert ones."""
    prompt = rows > ROW_LIMIT  # of one slot, and full up to the row
    before = min(place, length - 1)
    before = before if prompt else int(rng.integers(0, before + 1))
    after = int(rng.integers(0, min(rows - place, CHUNKS * CHUNK - length + 1)))
    others = 0 if prompt else int(rng.integers(0, place - before + 1))
    segments = [_random_segment(rng, 0, others)] if others else []
    segments.append(_own(place, before, after, length, gap=place - before - others))
    behind = 0 if prompt else int(rng.integers(0, rows - place - after))
    if behind:
        segments.append(_random_segment(rng, 3, behind))
    return make_table(rows, segments)


def _own(place: int, before: int, after: int, length: int, gap: int) -> Segment:
    """The row's segment; its other rows ask for nothing."""
    count = before + 1 + after
    fields = {}
    for name, value in OWN.items():
        plain = [row_defaults(SLOT, place - before + i).get(name, 0) for i in range(count)]
        fields[name] = [value if i == before else plain[i] for i in range(count)]
    tokens = [TOKEN if i == before else i for i in range(count)]
    return Segment(SLOT, length - 1 - before, tokens, gap, fields)


def _random_segment(rng: np.random.Generator, slot: int, count: int) -> Segment:
    tokens = rng.integers(0, 133, count).tolist()
    return Segment(slot, int(rng.integers(0, 200)), tokens, fields={"temperature": 1.0})


def case_of(
    name: str,
    params: Any,
    rows: int,
    place: int,
    length: int,
    seed: int,
    company: Ints | None = None,
) -> Case:
    """The row's own values are always the same; all others follow `seed`."""
    rng = np.random.default_rng([seed, rows, place])
    table = in_company(rng, rows, place, length) if company is None else company
    spec, sized = KERNELS[name], with_rows(params, rows)
    shell = bind(spec, sized, table)
    values = {}
    for i, arg in enumerate(shell.args.values()):
        if not arg.reads or arg.name == "table":
            continue
        own = np.random.default_rng(i)
        if arg.name in row_args(name, params):
            values[arg.name] = random_values(rng, arg, sized)
            values[arg.name][place] = random_values(own, arg, sized)[0]
        elif arg.reads is Region.WHOLE:
            values[arg.name] = random_values(own, arg, sized)
        else:
            mask = shell.mask(arg.name, arg.reads, alone(length))
            fixed, other = random_values(own, arg, sized), random_values(rng, arg, sized)
            values[arg.name] = torch.where(mask, fixed, other)
    return bind(spec, sized, table, values)


def row_bytes(case: Case, place: int, length: int) -> dict[str, bytes]:
    """What a run writes for the row, by output."""
    return own_bytes(case.run(), place, length)


def own_bytes(case: Case, place: int, length: int) -> dict[str, bytes]:
    """What stands in the outputs for the row."""
    indexed = row_args(case.spec.name, case.params)
    found = {}
    for arg in case.args.values():
        if arg.writes and arg.name in indexed:
            own = case[arg.name][place]
            if arg.name == "partials":  # chunks past the row's position may hold anything
                own = own[: (length - 1) // CHUNK + 1]
            found[arg.name] = bits(own)
        elif arg.writes:
            found[arg.name] = bits(case[arg.name][case.mask(arg.name, arg.writes, alone(length))])
    return found
