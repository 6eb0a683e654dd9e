"""Replays whole programs of a bundle with its CUDA templates: emulated, or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import emulation
from strata_kernels.registry import KERNELS
from strata_kernels.render import Entry
from strata_runtime.arenas import DTYPES, rotation_table
from strata_runtime.bundle_format import Argument, Call
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.launch import Launch, Row, Segment, Table, TableWriter
from strata_runtime.records import decode


class TemplateBundle:
    """The memory that a GPU has, matrices as the file stores them, and programs to replay."""

    device = "cpu"

    def __init__(self, bundle: Bundle, programs: Sequence[str]) -> None:
        """All memory but weights is poison (NaN)."""
        self.bundle = bundle
        self._calls = {
            (stage, name): [(entry_of(c), c) for c in bundle.programs[stage, name].calls]
            for stage in range(len(bundle.manifest.stages))
            for name in programs
        }
        self.plan = bundle.manifest.memory["cuda"]
        self._arenas = {
            n: torch.full((a.bytes,), 0xFF, dtype=torch.uint8, device=self.device)
            for n, a in self.plan.arenas.items()
        }
        self._fill()
        self._writer = TableWriter(bundle.manifest.table)
        self._sequence = 0

    def _fill(self) -> None:
        gguf = open_weights(self.bundle, self.bundle.folder)
        for name, b in self.plan.buffers.items():
            place = self._arenas[b.arena][b.offset : b.offset + b.bytes]
            if b.tensor is not None:
                stored = b.dtype not in DTYPES
                values = gguf.raw(b.tensor) if stored else gguf.dequantize(b.tensor)
                place.copy_(torch.from_numpy(values.reshape(-1).view(np.uint8).copy()))
            elif b.rotation is not None:
                values = rotation_table(b, b.rotation, gguf)
                place.copy_(torch.from_numpy(values.reshape(-1).view(np.uint8)))
            elif name.endswith("/counter"):
                place.zero_()

    def view(self, argument: Argument) -> torch.Tensor:
        """An argument in memory; a stored matrix as its bytes."""
        b = self.plan.buffers[argument.buffer]
        arena = self._arenas[b.arena]
        if argument.stored is not None:
            return arena[b.offset : b.offset + b.bytes]
        dtype = DTYPES[argument.dtype]
        start = b.offset + argument.offset
        size = int(np.prod(argument.shape)) * dtype.itemsize
        return arena[start : start + size].view(dtype).view(argument.shape)

    def run(self, program: str, rows: Sequence[Row], context: int = 0) -> None:
        """Replay a program on every stage."""
        kind, size = program.split(".r")
        firsts = [i for i, r in enumerate(rows) if r.index == 0]
        counts = np.diff([*firsts, len(rows)]).tolist()
        segments = [Segment(rows[f].slot, 1, f, c) for f, c in zip(firsts, counts, strict=True)]
        table = Table(kind, context, tuple(rows), tuple(segments))
        self._sequence += 1
        for stage in range(len(self.bundle.manifest.stages)):
            launch = Launch(self._sequence, stage, program, table)
            calls = self._calls[stage, program]
            ring = self.view(calls[0][1].args["ring"])
            counter = int(self.view(calls[0][1].args["counter"])[0])
            words = np.zeros(ring.shape[1], np.int32)
            self._writer.write(launch, int(size), words)
            ring[counter % len(ring)].copy_(torch.from_numpy(words))
            for entry, call in calls:
                self.launch(entry, {n: self.view(a) for n, a in call.args.items()})

    def launch(self, entry: Entry, bound: dict[str, torch.Tensor]) -> None:
        """Run one kernel."""
        raise AssertionError(f"{type(self).__name__} runs nothing")

    def window(self, rows: Sequence[Row], context: int = 0) -> np.ndarray:
        """Replay exec for these rows; the bits of their logits, (rows, vocab)."""
        program = f"exec.r{len(rows)}"
        self.run(program, rows, context)
        last = len(self.bundle.manifest.stages) - 1
        (call,) = [c for _, c in self._calls[last, program] if c.kernel == "logits_hash"]
        return self.view(call.args["logits"])[: len(rows)].cpu().numpy().view(np.int32).copy()

    def cells(self, slot: int, length: int) -> dict[str, bytes]:
        """The live bytes of every sort of cells of a slot: positions below `length`."""
        found = {}
        for name, b in self.plan.buffers.items():
            if "/cells." in name:
                whole = self.view(Argument(name, 0, b.dtype, b.shape, None, None))
                cells = whole[slot].movedim(2, 1).flatten(0, 1)[:length].contiguous()
                found[name] = cells.view(torch.uint8).cpu().numpy().tobytes()
        return found


class EmulatedBundle(TemplateBundle):
    """Under the emulated block model, threads in ascending or descending order."""

    def __init__(self, bundle: Bundle, programs: Sequence[str], order: int) -> None:
        """Compile the entries of these programs for the host."""
        super().__init__(bundle, programs)
        self._order = order
        entries = {e.name: e for calls in self._calls.values() for e, _ in calls}
        emulation.prepare(list(entries.values()))

    def launch(self, entry: Entry, bound: dict[str, torch.Tensor]) -> None:
        """Run one kernel's blocks one after another."""
        emulation.run(entry, bound, self._order)


def entry_of(call: Call) -> Entry:
    """The entry that a call names."""
    spec = KERNELS[call.kernel]
    entry = Entry(spec, decode(spec.params, call.params, call.entry))
    assert entry.name == call.entry
    return entry
