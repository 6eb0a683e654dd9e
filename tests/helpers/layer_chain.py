"""One layer of a small model as a chain of kernels, from tokens to logits and hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernel_case import DTYPES, SLOTS
from strata_kernels import (
    attention,
    attention_merge,
    embed,
    linear,
    logits_hash,
    prompt_attention,
    rmsnorm,
    rope_store,
    swiglu,
)
from strata_kernels.spec import CHUNK, KernelSpec
from strata_kernels.table import Ints

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB, CHUNKS = 48, 4, 2, 12, 80, 133, 4

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Cells:
    """The keys and values of all slots, (slots, chunks, kv heads, 64, head width) each."""

    k: torch.Tensor
    v: torch.Tensor

    def history(self, slot: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first `length` cells of one slot."""
        k, v = (x[slot].transpose(1, 2).flatten(0, 1)[:length] for x in (self.k, self.v))
        return k, v

    def put(self, slot: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Replace the first cells of one slot."""
        for cells, values in ((self.k, k), (self.v, v)):
            at = torch.arange(len(values))
            cells[slot, at // CHUNK, :, at % CHUNK] = values


def random_cells(cell_type: str, seed: int) -> Cells:
    """Every cell of every slot, as a window might have left it."""
    rng = np.random.default_rng(seed)
    shape = (SLOTS, CHUNKS, KV_HEADS, CHUNK, HEAD_DIM)
    k, v = (torch.from_numpy(rng.standard_normal(shape, np.float32)) for _ in range(2))
    return Cells(k.to(DTYPES[cell_type]), v.to(DTYPES[cell_type]))


class Chain:
    """The layer's weights, and its run over a table."""

    def __init__(self, cell_type: str) -> None:
        """Random weights, always the same."""
        self.cell_type = cell_type
        rng = np.random.default_rng(7)
        shapes = {
            "embedding": (VOCAB, WIDTH),
            "norm": (WIDTH,),
            "q": (HEADS * HEAD_DIM, WIDTH),
            "k": (KV_HEADS * HEAD_DIM, WIDTH),
            "v": (KV_HEADS * HEAD_DIM, WIDTH),
            "o": (WIDTH, HEADS * HEAD_DIM),
            "gate": (FF, WIDTH),
            "up": (FF, WIDTH),
            "down": (WIDTH, FF),
        }
        self.weights = {
            name: torch.from_numpy(rng.standard_normal(shape, np.float32)) / shape[-1] ** 0.5
            for name, shape in shapes.items()
        }
        angle = np.outer(np.arange(CHUNKS * CHUNK), 10000.0 ** (-np.arange(6) / 6))
        turns = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
        self.rotation = torch.from_numpy(turns)

    def run(self, table: Ints, rows: int, cells: Cells, prompt: bool = False) -> Tensors:
        """Logits (padded rows, vocab) and hashes; the rows' cells are written into `cells`."""
        with torch.inference_mode():
            run = _Run(self, table, rows, cells)
            x = run.call(embed.SPEC, embed.Params(rows, VOCAB, WIDTH, "f32"), weight="embedding")
            x = run.attend(x, prompt)
            x = run.feed_forward(x)
            logits = run.linear(run.norm(x), "embedding")
            params = logits_hash.Params(rows, VOCAB)
            hashes = run.call(logits_hash.SPEC, params, logits=logits)
        return {"logits": logits, "hashes": hashes}


class _Run:
    """One run: every output is new memory, poisoned, as scratch of another window would be."""

    def __init__(self, chain: Chain, table: Ints, rows: int, cells: Cells) -> None:
        self._chain, self._rows, self._cells = chain, rows, cells
        self._table = torch.from_numpy(table)

    def call(self, spec: KernelSpec[Any], params: Any, **given: torch.Tensor | str) -> torch.Tensor:
        """Run one kernel; a string names a weight. Returns its last output that is not cells."""
        bound: Tensors = {"table": self._table}
        for name, value in given.items():
            bound[name] = self._chain.weights[value] if isinstance(value, str) else value
        out = torch.empty(0)
        for arg in spec.args(params):
            if arg.name not in bound:
                fill = torch.nan if DTYPES[arg.dtype].is_floating_point else -1
                bound[arg.name] = out = torch.full(arg.shape, fill, dtype=DTYPES[arg.dtype])
        spec.reference(params, bound)
        return out

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """rmsnorm."""
        return self.call(rmsnorm.SPEC, rmsnorm.Params(self._rows, WIDTH, 1e-5), x=x, weight="norm")

    def linear(
        self, x: torch.Tensor, weight: str, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A matrix, and the residual stream where given."""
        outer, inner = self._chain.weights[weight].shape
        params = linear.Params(self._rows, inner, outer, "f32", residual=residual is not None)
        more = {} if residual is None else {"residual": residual}
        return self.call(linear.SPEC, params, x=x, weight=weight, **more)

    def attend(self, x: torch.Tensor, prompt: bool) -> torch.Tensor:
        """The attention half of the layer."""
        cell_type, rows = self._chain.cell_type, self._rows
        y = self.norm(x)
        q, k, v = (self.linear(y, name) for name in ("q", "k", "v"))
        cells = {"k_cells": self._cells.k, "v_cells": self._cells.v}
        turn = rope_store.Params(rows, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM, True, cell_type, CHUNKS)
        q = self.call(rope_store.SPEC, turn, rotation=self._chain.rotation, q=q, k=k, v=v, **cells)
        params = attention.Params(rows, HEADS, KV_HEADS, HEAD_DIM, cell_type, CHUNKS)
        if prompt:
            out = self.call(prompt_attention.SPEC, params, q=q, **cells)
        else:
            parts = self.call(attention.SPEC, params, q=q, **cells)
            merge = attention_merge.Params(rows, HEADS, HEAD_DIM, CHUNKS)
            out = self.call(attention_merge.SPEC, merge, partials=parts)
        return self.linear(out, "o", residual=x)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The other half."""
        y = self.norm(x)
        gate, up = self.linear(y, "gate"), self.linear(y, "up")
        y = self.call(swiglu.SPEC, swiglu.Params(self._rows, FF), gate=gate, up=up)
        return self.linear(y, "down", residual=x)
