"""Runs single programs of a bundle in the test's own thread, and shows what they left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from strata_compile.passes import PassRunner
from strata_compile.pipeline import CompileOptions, compile_plan
from strata_runtime.arenas import Arenas
from strata_runtime.bundle_load import Bundle, load_bundle, open_draft, open_weights
from strata_runtime.cpu_device import BoundCall, bind, replay
from strata_runtime.launch import Launch, Row, Sampling, Segment, Table, TableWriter


def compile_bundle(folder: Path, model: Path, **keys: object) -> Bundle:
    """Compile a plan for `model` with these keys, and load the bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"model: {model}", *(f"{key}: {value}" for key, value in keys.items())]
    (folder / "plan.yaml").write_text("\n".join(lines) + "\n")
    options = CompileOptions(folder / "bundle", folder / "cache")
    return load_bundle(compile_plan(folder / "plan.yaml", options, PassRunner()))


def rows_of(
    slot: int, position: int, tokens: Sequence[int], first: int = 0, handoff: int = 0
) -> list[Row]:
    """One segment: rows of a slot from a position on; `first` is its first row in the window."""
    return [
        Row(slot, position + i, t, first, i, handoff + first + i, slot, slot, sampling=Sampling())
        for i, t in enumerate(tokens)
    ]


class Replayer:
    """Arenas and bound programs of a bundle; every stage runs in the calling thread."""

    def __init__(self, bundle: Bundle, poison: int = 0) -> None:
        """Everything that is not a weight is filled with `poison` bytes first."""
        self.bundle = bundle
        self.stages = len(bundle.manifest.stages)
        self.arenas = Arenas(bundle.manifest.memory["cpu"])
        self.poison(poison)
        folder = bundle.folder
        self.arenas.fill(open_weights(bundle, folder), open_draft(bundle, folder))
        self.writer = TableWriter(bundle.manifest.table)
        self._bound: dict[tuple[int, str], tuple[BoundCall, ...]] = {}
        self._sequence = 0

    def poison(self, byte: int) -> None:
        """Fill cells, contexts, tables and scratch with a byte; rings start anew."""
        for name, arena in self.bundle.manifest.memory["cpu"].arenas.items():
            if arena.role != "weights":
                self.arenas.arena(name).fill_(byte)
        for stage in range(self.stages):
            self.arenas.buffer(f"{stage}/counter").zero_()

    def run(self, program: str, rows: Sequence[Row], context: int = 0) -> None:
        """Replay a program on every stage; rows that stand together are a segment."""
        kind, size = program.split(".r")
        firsts = [i for i, r in enumerate(rows) if r.index == 0]
        counts = np.diff([*firsts, len(rows)]).tolist()
        segments = [Segment(rows[f].slot, 1, f, c) for f, c in zip(firsts, counts, strict=True)]
        # A copy's and a prompt's rows are of one slot each: one segment says so.
        table = Table(kind, context, tuple(rows), tuple(segments[:8]))
        self._sequence += 1
        for stage in range(self.stages):
            self.write_table(stage, Launch(self._sequence, stage, program, table), int(size))
            with torch.inference_mode():
                replay(self.bound(stage, program))

    def write_table(self, stage: int, launch: Launch, rows: int) -> None:
        """Write a launch's table into the entry that the stage's counter names."""
        ring = self.arenas.buffer(f"{stage}/ring").numpy()
        counter = int(self.arenas.buffer(f"{stage}/counter")[0])
        self.writer.write(launch, rows, ring[counter % len(ring)])

    def bound(self, stage: int, program: str) -> tuple[BoundCall, ...]:
        """A program's calls, bound once."""
        key = (stage, program)
        if key not in self._bound:
            self._bound[key] = bind(self.bundle.programs[key], self.arenas)
        return self._bound[key]

    def window(self, rows: Sequence[Row], context: int = 0) -> npt.NDArray[np.int32]:
        """Replay exec for these rows; returns the bits of their logits, (rows, vocab)."""
        program = f"exec.r{len(rows)}"
        self.run(program, rows, context)
        return self.logits(program)[: len(rows)].cpu().numpy().view(np.int32).copy()

    def logits(self, program: str) -> torch.Tensor:
        """The logits that an exec program left in its scratch."""
        calls = self.bundle.programs[self.stages - 1, program].calls
        (hashing,) = [c for c in calls if c.kernel == "logits_hash"]
        return self.arenas.argument(hashing.args["logits"])

    def prompt(self, slot: int, tokens: Sequence[int], chunk: int, start: int = 0) -> None:
        """Read tokens in prompt chunks of `chunk` live rows."""
        shape = self.bundle.manifest.shape
        base = shape.groups * shape.row_limit
        for at in range(0, len(tokens), chunk):
            part = tokens[at : at + chunk]
            size = min(n for n in shape.prompt_sizes if n >= len(part))
            rows = rows_of(slot, start + at, part, handoff=base)
            self.run(f"prompt.r{size}", rows, context=shape.groups)

    def decode(self, slot: int, tokens: Sequence[int], width: int, start: int = 0) -> None:
        """Read tokens in windows of `width` rows, as if all drafts were accepted."""
        for at in range(0, len(tokens), width):
            self.window(rows_of(slot, start + at, tokens[at : at + width]))

    def cells(self, slot: int, length: int) -> dict[str, bytes]:
        """The live bytes of every sort of cells of a slot: positions below `length`."""
        found = {}
        for name, buffer in self.bundle.manifest.memory["cpu"].buffers.items():
            if "/cells." in name:
                cells = self.arenas.buffer(name)[slot].movedim(2, 1).flatten(0, 1)
                assert buffer.shape[0] == self.bundle.manifest.shape.slots
                kept = cells[:length].contiguous().view(torch.uint8)
                found[name] = kept.cpu().numpy().tobytes()
        return found
