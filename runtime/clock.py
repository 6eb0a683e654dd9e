"""The clock: a device that computes nothing, and knows when each launch would have ended.

It runs in virtual time, so the same launches always end at the same times. Its texts are synthetic:
the token at a position of a stream is a hash, and a draft for it is right as often as is asked for.
A stream is known by its requests' sampling seed.
"""

from __future__ import annotations

import hashlib
import heapq
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strata_runtime.bundle_format import Manifest
from strata_runtime.device import Done
from strata_runtime.errors import DeviceError, OptionError
from strata_runtime.launch import Launch, Row, Segment, Table, Tokens
from strata_runtime.request import Request
from strata_runtime.times import Times

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SyntheticText:
    """Texts of tokens below `vocab`, and drafts of them that are right with `acceptance`.

    Everything is a pure function of (`seed`, stream, position), and of a draft's index behind the
    real token: each draft holds or not by itself, whatever the schedule.
    """

    vocab: int
    acceptance: tuple[float, ...]
    seed: int = 0

    def token(self, stream: int, position: int) -> int:
        """The token that stands at a position of a stream."""
        return self._words(stream, position)[0] % self.vocab

    def logits_hash(self, stream: int, position: int) -> tuple[int, int]:
        """Two int32 that stand for the logits which the token at a position is drawn from."""
        _, low, high, _ = self._words(stream, position)
        return low, high

    def probability(self, index: int) -> float:
        """How likely draft `index`, from 0, is right."""
        return self.acceptance[min(index, len(self.acceptance) - 1)]

    def draft(self, stream: int, position: int, index: int) -> int:
        """What draft `index` proposes for a position; a wrong one is the next token id."""
        token, chance = self.token(stream, position), self._words(stream, position)[3]
        holds = (chance + 0.5) / (1 << 32) < self.probability(index)
        return token if holds else (token + 1) % self.vocab

    def _words(self, stream: int, position: int) -> tuple[int, int, int, int]:
        """The token's word, two words of its hash, and the word that decides about its draft."""
        data = struct.pack("<qQq", self.seed, stream, position)
        digest = hashlib.blake2b(data, digest_size=16).digest()
        word, low, high, chance = struct.unpack("<IiiI", digest)
        return word, low, high, chance


class SyntheticDrafter:
    """A host drafter that knows one stream's synthetic text."""

    def __init__(self, text: SyntheticText, stream: int) -> None:
        """Before any token of the stream."""
        self._text, self._stream, self._length = text, stream, 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Move on; the text is known already."""
        self._length += len(tokens)

    def propose(self, depth: int) -> Tokens:
        """Drafts of the next `depth` tokens."""
        return tuple(self._text.draft(self._stream, self._length + i, i) for i in range(depth))


class ClockDevice:
    """Implements `Device` in virtual time.

    A launch starts once it is submitted, the one before it on its stage has ended, and so has all
    that it waits for; it ends after what `times` say of its stage, kind and rows.
    """

    def __init__(self, manifest: Manifest, times: Times, seed: int = 0) -> None:
        """`seed` makes other texts. OptionError where `times` are for another number of stages."""
        stages, shape = len(manifest.stages), manifest.shape
        if times.stages and len(times.stages) != stages:
            raise OptionError(
                f"stages has {len(times.stages)} items, the bundle has {stages} stages"
            )
        self.text = SyntheticText(manifest.model.vocab, times.acceptance, seed)
        self.now = 0.0  # milliseconds; that of the last completion, and of the host's work for it
        self.busy_ms = [0.0] * stages
        self._times, self._row_limit = times, shape.row_limit
        self._host_ms = 0.0  # what the next submission takes first
        self._free = [0.0] * stages  # when a stage has run all that is queued
        self._ends: dict[int, float] = {}  # of launches whose completion was not taken
        self._queue: list[tuple[float, int, Launch, Done]] = []
        self._verdicts: dict[int, Ints] = {}
        self._drafts: dict[int, Ints] = {}

    def drafter(self, request: Request) -> SyntheticDrafter:
        """A host drafter of a request's stream, with the device's acceptance: for the engine."""
        return SyntheticDrafter(self.text, request.sampling.seed)

    def stage_busy(self, stage: int) -> float:
        """Which part of the time until now a stage has worked, what is queued included: 0 to 1."""
        end = max(self.now, self._free[stage])
        return self.busy_ms[stage] / end if end else 0.0

    def submit(self, launch: Launch) -> None:
        """Queue a launch; its times follow at once, since all that it waits for is queued.

        DeviceError for a launch that would never start.
        """
        if later := [w for w in launch.waits if w >= launch.id]:
            raise DeviceError(f"launch {launch.id} waits for {later[0]}, which is queued later")
        self.now, self._host_ms = self.now + self._host_ms, 0.0
        waits = [self._ends.get(w, 0.0) for w in launch.waits]
        start = max(self.now, self._free[launch.stage], *waits)
        rows = int(launch.program.rpartition(".r")[2])
        elapsed = self._times.ms(launch.stage, launch.table.kind, rows)
        self._free[launch.stage] = self._ends[launch.id] = end = start + elapsed
        self.busy_ms[launch.stage] += elapsed
        done = Done(launch.id, launch.stage, start / 1e3, elapsed)
        heapq.heappush(self._queue, (end, launch.id, launch, done))

    def wait(self) -> Done:
        """The next completion in virtual time, of several at once the one submitted first.

        DeviceError where nothing is in flight: it would wait for ever.
        """
        if not self._queue:
            raise DeviceError("the clock waits, but nothing is in flight")
        end, number, launch, done = heapq.heappop(self._queue)
        del self._ends[number]
        self.now, self._host_ms = max(self.now, end), self._times.host_ms
        table = launch.table
        if launch.stage == len(self._free) - 1 and table.kind == "exec":
            self._verdicts[table.context] = self._judge(table)
        elif table.kind == "draft":
            self._drafts[table.context] = self._propose(table, launch.program)
        return done

    def verdict(self, context: int) -> Ints:
        """A window context's verdict words: accepted, token; then row i's hash, low and high."""
        return self._verdicts[context].copy()

    def drafts(self, context: int) -> Ints:
        """A window context's draft words: how many; then each token and its probability's bits."""
        return self._drafts[context].copy()

    def close(self) -> None:
        """Nothing runs, nothing is held."""

    def _judge(self, table: Table) -> Ints:
        """A draft is accepted if it is what stands at its position, and those before it are."""
        words = np.zeros((self._row_limit, 4), np.int32)
        for i, row in enumerate(table.rows):
            words[i, 2:] = self.text.logits_hash(row.sampling.seed, row.position + 1)
        for i, segment in enumerate(table.segments):
            rows = _rows_of(table, segment)
            most = len(rows) - 1 if rows[0].forced < 0 else min(rows[0].forced, len(rows) - 1)
            accepted = 0
            while accepted < most and self._true(rows[accepted + 1]):
                accepted += 1
            last = rows[accepted]
            words[i, :2] = accepted, self.text.token(last.sampling.seed, last.position + 1)
        return words

    def _true(self, row: Row) -> bool:
        return row.token == self.text.token(row.sampling.seed, row.position)

    def _propose(self, table: Table, program: str) -> Ints:
        """Drafts behind the token that the verdict drew for each segment."""
        words = np.zeros((self._row_limit, 1 + 2 * (self._row_limit - 1)), np.int32)
        steps = int(program.rpartition(".r")[2])
        for line, segment, verdict in zip(
            words, table.segments, self._verdicts[table.context], strict=False
        ):
            row = table.rows[segment.first_row]
            stream, first = row.sampling.seed, row.position + int(verdict[0]) + 2
            line[0] = count = min(segment.depth, steps)
            for i in range(count):
                line[1 + 2 * i] = self.text.draft(stream, first + i, i)
                line[2 + 2 * i] = np.float32(self.text.probability(i)).view(np.int32)
        return words


def _rows_of(table: Table, segment: Segment) -> tuple[Row, ...]:
    return table.rows[segment.first_row : segment.first_row + segment.count]
