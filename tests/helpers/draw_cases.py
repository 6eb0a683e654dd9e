"""Runs of `sample` on hand-made logits, and the draw as plain Python has it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kernel_case import Case, Segment, bind, make_table
from strata_kernels import sample
from strata_kernels.philox import uniform
from strata_kernels.spec import padded

CHUNKS = 2
HISTORY = 64 * CHUNKS


@dataclass(frozen=True)
class Row:
    """One row: logits, table fields, position, its slot's last tokens, bias, allowed tokens."""

    logits: Sequence[float]
    fields: Mapping[str, float] = field(default_factory=dict)
    position: int = 9
    tokens: Sequence[int] = ()
    bias: Sequence[float] | None = None
    allowed: Sequence[int] | None = None


def draw(*rows: Row) -> list[int]:
    """The kernel's tokens for up to 8 rows, each of a slot of its own."""
    found: list[int] = window(*rows).run()["draws"][: len(rows)].tolist()
    return found


def window(*rows: Row) -> Case:
    """A case of up to 8 rows, each of a slot of its own, not yet run.

    Cells that `tokens` does not fill hold token 0; those past the position hold poison.
    """
    count, vocab = len(rows), len(rows[0].logits)
    logits, bias = torch.full((8, vocab), torch.nan), torch.zeros(count, vocab)
    cells = torch.zeros(count, HISTORY, dtype=torch.int32)
    masks = np.zeros((count, -(-vocab // 32)), np.uint32)
    segments = []
    for i, row in enumerate(rows):
        end = row.position + 1
        logits[i], bias[i] = torch.tensor(row.logits), torch.tensor(row.bias or [0.0] * vocab)
        cells[i, end - len(row.tokens) : end] = torch.tensor(row.tokens, dtype=torch.int32)
        cells[i, end:] = -12345
        for token in row.allowed or ():
            masks[i, token // 32] |= np.uint32(1 << token % 32)
        side = {"bias": -1 if row.bias is None else i, "mask": -1 if row.allowed is None else i}
        segments.append(Segment(i, row.position, fields={**side, **row.fields}))
    values = {
        "logits": logits,
        "token_cells": cells.view(-1, CHUNKS, 1, 64, 1),
        "bias": bias,
        "mask": torch.from_numpy(masks.view(np.int32)),
    }
    params = sample.Params(count, vocab, CHUNKS)
    return bind(sample.SPEC, params, make_table(count, segments), values)


def draw_many(logits: Sequence[float], count: int, **fields: float) -> list[int]:
    """Tokens drawn at positions 0..count-1 from the same logits."""
    shape = padded(count), len(logits)
    values = {"logits": torch.tensor(logits).expand(shape)}
    table = make_table(count, [Segment(0, 0, (0,) * count, fields=fields)])
    params = sample.Params(count, len(logits), CHUNKS)
    found: list[int] = bind(sample.SPEC, params, table, values).run()["draws"][:count].tolist()
    return found


def uniforms(count: int, seed_low: int = 0, seed_high: int = 0) -> list[float]:
    """The numbers that decide at positions 0..count-1: keyed by the position drawn *for*."""
    low, high = np.full((2, count), 0, np.int32)
    positions = np.arange(1, count + 1, dtype=np.int32)
    return [
        float(u) for u in uniform(low + np.int32(seed_low), high + np.int32(seed_high), positions)
    ]


def plain_draw(row: Row) -> int:
    """The documented order of steps, in float64; exact ties go to the lower id."""
    f = {"top_p": 1.0, "repeat_penalty": 1.0, **row.fields}
    x = _penalised(row, f)
    if f.get("temperature", 0) <= 0:
        return max(range(len(x)), key=lambda i: (x[i], -i))
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    p = [math.exp((x[i] - x[order[0]]) / f["temperature"]) for i in order]
    if 0 < f.get("top_k", 0) < len(p):
        p[int(f["top_k"]) :] = [0.0] * (len(p) - int(f["top_k"]))
    total, before, kept = sum(p), 0.0, []
    for rank, weight in enumerate(p):
        inside = (before < f["top_p"] * total or rank == 0) and weight >= f.get("min_p", 0)
        kept.append(weight if inside else 0.0)
        before += weight
    low, high = (np.array([int(f.get(n, 0))], np.int32) for n in ("seed_low", "seed_high"))
    left = float(uniform(low, high, np.array([row.position + 1], np.int32))[0]) * sum(kept)
    for token, weight in zip(order, kept, strict=True):
        left -= weight
        if left < 0:
            return token
    raise AssertionError("the weights add up to more than any uniform number of them")


def _penalised(row: Row, f: Mapping[str, float]) -> list[float]:
    """Bias, penalties, mask."""
    x = [a + b for a, b in zip(row.logits, row.bias or [0.0] * len(row.logits), strict=True)]
    last = int(f.get("penalty_last", 0))
    everything = [*[0] * (row.position + 1 - len(row.tokens)), *row.tokens]
    for token, count in Counter(everything[-last:] if last else []).items():
        x[token] = (
            x[token] / f["repeat_penalty"] if x[token] > 0 else x[token] * f["repeat_penalty"]
        )
        x[token] -= count * f.get("frequency_penalty", 0) + f.get("presence_penalty", 0)
    if row.allowed is not None:
        x = [v if i in row.allowed else -math.inf for i, v in enumerate(x)]
    return x
