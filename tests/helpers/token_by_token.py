"""What texts are alone, and what a slot carries after each of their tokens, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from replayer import Replayer, rows_of
from strata_runtime.arenas import Arenas
from strata_runtime.bundle_format import Manifest
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.drafters import NoDrafter
from strata_runtime.engine import Engine
from strata_runtime.launch import Launch
from strata_runtime.request import Request
from strata_runtime.schedule import Schedule

Bytes = npt.NDArray[np.uint8]
#: What is in no buffer that a text could need: NaN, and in integers -1.
POISON = 0xFF
#: Roles of arenas whose free parts may hold anything.
FREE_ROLES = ("cells", "states", "contexts", "scratch", "answers")


@dataclass(frozen=True)
class Text:
    """A request's text by itself, without drafts: tokens, why it ends, the hash of its logits."""

    tokens: tuple[int, ...]
    finish: str | None
    logits_hash: str | None


@dataclass(frozen=True)
class Carried:
    """What a slot carries for `tokens`: its cells by position, its states by rows read.

    By the buffer's name without its stage; cells are (positions, bytes of one).
    """

    tokens: tuple[int, ...]
    cells: dict[str, Bytes]
    states: dict[str, list[bytes]]


def fill_free(arenas: Arenas, manifest: Manifest, byte: int, family: str = "cpu") -> None:
    """Fill everything that is neither a weight nor a table; `family` is the device's."""
    for name, arena in manifest.memory[family].arenas.items():
        if arena.role in FREE_ROLES:
            arenas.arena(name).fill_(byte)
    if torch.cuda.is_initialized():  # the device's streams do not wait for torch's
        torch.cuda.synchronize()


class Alone:
    """A bundle of one stage and one slot: each text by itself, and token by token."""

    def __init__(self, bundle: Bundle, cuda: CudaDevice | None = None) -> None:
        """On a device of its own, or on `cuda`."""
        draft = open_draft(bundle, bundle.folder)
        weights = open_weights(bundle, bundle.folder)
        self._bundle = bundle
        self._reader: Replayer | None = None
        self._device = cuda or CpuDevice(bundle, weights, threads=1, draft=draft)
        fill_free(self._device.arenas, bundle.manifest, POISON, "cuda" if cuda else "cpu")
        self._texts: dict[Request, Text] = {}

    def close(self) -> None:
        """Stop the device's worker."""
        self._device.close()

    def text(self, request: Request) -> Text:
        """The request's text, decoded once; ids are the engine's, so the request has id 0."""
        if request not in self._texts:
            manifest = self._bundle.manifest
            schedule = Schedule(windows=1, drafts=0)
            engine = Engine(
                manifest, self._device, drafter=lambda request: NoDrafter(), schedule=schedule
            )
            engine.submit(request)
            updates = list(engine.updates())
            tokens = tuple(token for update in updates for token in update.tokens)
            last = updates[-1]
            self._texts[request] = Text(tokens, last.finish, last.logits_hash)
        return self._texts[request]

    def carried(self, tokens: Sequence[int]) -> Carried:
        """Read tokens in windows of one row, each committed."""
        self._reader = replayer = self._reader or Replayer(self._bundle, POISON)
        before = dict[str, list[bytes]]()
        replayer.poison(POISON)
        for position, token in enumerate(tokens):
            rows = [replace(row, saved_row=0) for row in rows_of(0, position, [token])]
            replayer.run("exec.r1", rows)
            if (0, "commit.r1") in self._bundle.programs:
                replayer.run("commit.r1", rows)
            for name, state in states(replayer.arenas, self._bundle.manifest, 0, 0).items():
                before.setdefault(name, [b""]).append(state)
        found = cells(replayer.arenas, self._bundle.manifest, 0, 0)
        kept = {name: each[: len(tokens)].copy() for name, each in found.items()}
        return Carried(tuple(tokens), kept, before)


def cells(arenas: Arenas, manifest: Manifest, stage: int, slot: int) -> dict[str, Bytes]:
    """A slot's cells of a stage by the name without stage: (positions, bytes of one)."""
    found = {}
    for name in manifest.memory["cpu"].buffers:
        if name.startswith(f"{stage}/cells."):
            mine = arenas.buffer(name)[slot].movedim(2, 1).flatten(0, 1).flatten(1)
            bytes_of = mine.contiguous().view(torch.uint8).numpy()
            found[name.partition("/")[2]] = bytes_of
    return found


def states(arenas: Arenas, manifest: Manifest, stage: int, slot: int) -> dict[str, bytes]:
    """A slot's states of a stage by the name without stage."""
    plan = manifest.memory["cpu"]
    return {
        name.partition("/")[2]: arenas.buffer(name)[slot].numpy().tobytes()
        for name, buffer in plan.buffers.items()
        if name.startswith(f"{stage}/") and plan.arenas[buffer.arena].role == "states"
    }


class Witness:
    """Compares what a slot carries with token-by-token decoding, bit for bit, after each launch.

    A launch is known by its rows' sampling seed. `checked` counts comparisons: cells, then states.
    """

    def __init__(
        self, arenas: Arenas, manifest: Manifest, carried: dict[int, Carried], layers: int
    ) -> None:
        """`layers` of the trunk: those behind are the drafter's, whose cells lag by one."""
        self._arenas, self._manifest, self._carried = arenas, manifest, carried
        self._drafters = {f"cells.{part}.{layers}" for part in "kv"}
        self.checked = [0, 0]

    def __call__(self, launch: Launch) -> None:
        """Exec and draft leave the state of the rows before; prompt and commits that of theirs."""
        for segment in launch.table.segments:
            mine = launch.table.rows[segment.first_row : segment.first_row + segment.count]
            only_reads = launch.table.kind in ("exec", "draft")
            kept = mine[0].position if only_reads else mine[-1].position + 1
            seed, cells_kept = mine[0].sampling.seed, kept + only_reads
            self.check(launch.stage, segment.slot, seed, cells_kept, kept, str(launch))

    def check(
        self, stage: int, slot: int, seed: int, cells_kept: int, rows_read: int, where: str = ""
    ) -> None:
        """A slot's first cells, and its states after so many rows, on one stage."""
        expected = self._carried[seed]
        for name, found in cells(self._arenas, self._manifest, stage, slot).items():
            live = max(0, cells_kept - (name in self._drafters))
            assert np.array_equal(found[:live], expected.cells[name][:live]), (name, live, where)
            self.checked[0] += live > 0
        if rows_read:
            for name, state in states(self._arenas, self._manifest, stage, slot).items():
                assert state == expected.states[name][rows_read], (name, rows_read, where)
                self.checked[1] += 1
