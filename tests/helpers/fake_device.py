"""A device without arithmetic: launches run in any legal order, and every access is checked.

Its model draws a token from a hash of all tokens before it, so that a text is a pure function of
its prompt. A request is known by its sampling seed.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from strata_runtime.bundle_format import Shape
from strata_runtime.device import Done
from strata_runtime.launch import Launch, Row, Segment, Table
from strata_runtime.request import CONTEXT, LENGTH, STOP, Request

VOCAB = 50

Ints = npt.NDArray[np.int32]
#: Epoch and token of what wrote a cell; None where nothing did.
Cell = tuple[int, int] | None


def draw(history: Sequence[int]) -> tuple[int, int, int]:
    """The token after a history, and the two words that stand for the hash of its logits."""
    data = hashlib.blake2b(np.array(history, np.int32).tobytes(), digest_size=12).digest()
    token, low, high = np.frombuffer(data, np.int32).tolist()
    return token % VOCAB, low, high


def end_of(request: Request, text: Sequence[int], context: int) -> str | None:
    """Why a text ends with its last token, if it does."""
    if text[-1] in request.end_tokens:
        return STOP
    if len(text) == request.max_tokens:
        return LENGTH
    return CONTEXT if len(request.prompt) + len(text) > context else None


def text_alone(request: Request, context: int) -> tuple[list[int], str]:
    """The whole text of a request and why it ends, without any device."""
    text: list[int] = []
    while True:
        text.append(draw([*request.prompt, *text])[0])
        if reason := end_of(request, text, context):
            return text, reason


class FakeDevice:
    """Implements `Device`; AssertionError at the submission or the execution that breaks a rule."""

    def __init__(
        self,
        shape: Shape,
        stages: int,
        seed: int = 0,
        cost: Callable[[Launch], float] = lambda launch: 1.0,
    ) -> None:
        """`seed` decides the order of completions, `cost` gives a launch's milliseconds."""
        self.launches: list[Launch] = []
        self.errors: dict[int, BaseException] = {}  # by launch id, for a test to set
        self.closed = False
        self._shape, self._stages, self._cost = shape, stages, cost
        self._random = random.Random(seed)
        self._eager = self._random.random()  # how far execution runs ahead of what is reported
        self._queues: list[deque[Launch]] = [deque() for _ in range(stages)]
        self._ran: list[deque[Launch]] = [deque() for _ in range(stages)]
        self._tables: list[list[Table]] = [[] for _ in range(stages)]
        self._complete: set[int] = set()
        self._reported: set[int] = set()
        self._true: dict[int, list[int]] = {}
        #: By context: a window until its verdict is taken, a chunk until it is reported.
        self.live: dict[int, tuple[int, ...]] = {}
        empty: list[Cell] = [None] * shape.context
        self._cells = [[empty.copy() for _ in range(shape.slots)] for _ in range(stages)]
        self._handoff: list[dict[int, tuple[Table, int]]] = [{} for _ in range(stages)]
        self._unread: list[set[int]] = [set() for _ in range(stages)]
        self._words: dict[int, Ints] = {}

    def expect(self, request: Request) -> Request:
        """Learn the prompt that rows with this request's seed belong to."""
        self._true[request.sampling.seed] = list(request.prompt)
        return request

    def submit(self, launch: Launch) -> None:
        """Queue a launch; checks everything that must hold when it is queued."""
        assert launch.id == len(self.launches) + 1, f"{launch.id}: ids count from 1"
        assert all(0 < w < launch.id for w in launch.waits), f"{launch.id}: waits for a later one"
        place = len(self._tables[launch.stage])
        self._tables[launch.stage].append(launch.table)
        if launch.stage == 0:
            self._check_table(launch)
            self._check_live(launch.table)
        else:
            assert self._tables[0][place] == launch.table, f"{launch.id}: another order of launches"
        self.launches.append(launch)
        self._queues[launch.stage].append(launch)

    def wait(self) -> Done:
        """Run what may run, in random order, until one completion is reported."""
        while True:
            ready = [q for q in self._queues if q and self._complete >= {*q[0].waits}]
            done = [q for q in self._ran if q and self._reported >= {*q[0].waits}]
            assert ready or done, "nothing is in flight: this would wait for ever"
            if ready and (not done or self._random.random() < self._eager):
                self._run(self._random.choice(ready).popleft())
            else:
                return self._report(self._random.choice(done).popleft())

    def verdict(self, context: int) -> Ints:
        """Take a window's verdict words; its context is free then."""
        del self.live[context]
        return self._words.pop(context)

    def close(self) -> None:
        """Nothing is freed; says that it was called."""
        self.closed = True

    def _report(self, launch: Launch) -> Done:
        self._reported.add(launch.id)
        if launch.table.kind == "prompt" and launch.stage == self._stages - 1:
            del self.live[launch.table.context]
        error = self.errors.get(launch.id)
        return Done(launch.id, launch.stage, 0.0, self._cost(launch), error)

    def _check_live(self, table: Table) -> None:
        """No context is used twice, and a slot has one window and no chunk behind it."""
        slots = tuple(s.slot for s in table.segments)
        assert len({*slots}) == len(slots), f"{slots}: a slot twice in a window"
        assert table.context not in self.live, f"context {table.context} is in flight"
        windows = {s for c, live in self.live.items() if c < self._shape.groups for s in live}
        assert not windows & {*slots}, f"{slots}: already in flight in a window"
        self.live[table.context] = slots

    def _check_table(self, launch: Launch) -> None:
        table, shape = launch.table, self._shape
        assert table.kind in ("exec", "prompt"), table.kind
        size = int(launch.program.removeprefix(f"{table.kind}.r"))
        count, first = len(table.rows), table.context * shape.row_limit
        if table.kind == "exec":
            assert 0 <= table.context < shape.groups, "a window in a context of chunks"
            assert count == size <= shape.row_limit, f"{count} rows in a window of {size}"
        else:
            assert 0 <= table.context - shape.groups < shape.prompt_contexts
            assert 0 < count <= size and size in shape.prompt_sizes, f"{count} rows of {size}"
            chunk, most = table.context - shape.groups, shape.prompt_sizes[-1]
            first = shape.groups * shape.row_limit + chunk * most
            assert len(table.segments) == 1, "a chunk of several slots"
        assert [r.handoff_row for r in table.rows] == [*range(first, first + count)]
        rows = [self._segment_rows(table, s) for s in table.segments]
        assert sum(rows, start=()) == table.rows, "rows that belong to no segment"

    def _segment_rows(self, table: Table, segment: Segment) -> tuple[Row, ...]:
        """The rows of a segment, which stand together, in order, below the context."""
        first = segment.first_row
        rows = table.rows[first : first + segment.count]
        assert len(rows) == segment.count >= 1
        for i, row in enumerate(rows):
            assert (row.slot, row.first_row, row.index) == (segment.slot, first, i)
            assert (row.state_in, row.state_out) == (row.slot, row.slot)
            assert row.position == rows[0].position + i >= 0
            assert row.position < self._shape.context, f"a row at {row.position}, past the context"
            assert row.sampling == rows[0].sampling
        return rows

    def _run(self, launch: Launch) -> None:
        stage, last = launch.stage, launch.stage == self._stages - 1
        for segment in launch.table.segments:
            self._run_segment(launch, segment)
        if last and launch.table.kind == "exec":
            self._judge(launch.table)
        self._complete.add(launch.id)
        self._ran[stage].append(launch)

    def _run_segment(self, launch: Launch, segment: Segment) -> None:
        """Check what its rows read, then write their cells and hand-off rows."""
        rows = self._segment_rows(launch.table, segment)
        cells, start = self._cells[launch.stage][segment.slot], rows[0].position
        true = self._truth(rows[0].sampling.seed, start + len(rows))
        history = [(segment.epoch, token) for token in true[:start]]
        assert cells[:start] == history, f"{launch.id}: a history with wrong cells"
        for i, row in enumerate(rows):
            if i == 0 or launch.table.kind == "prompt":
                assert row.token == true[row.position], f"{launch.id}: not this slot's token"
            self._pass_on(launch, segment.first_row + i, row.handoff_row)
            cells[row.position] = (segment.epoch, row.token)

    def _truth(self, seed: int, count: int) -> list[int]:
        """At least `count` tokens of the prompt and the text after it."""
        true = self._true[seed]
        while len(true) < count:
            true.append(draw(true)[0])
        return true

    def _pass_on(self, launch: Launch, row: int, place: int) -> None:
        """Read a row that the stage before handed off in this launch's name; hand it off."""
        stage = launch.stage
        if stage:
            found = self._handoff[stage - 1].get(place)
            assert found == (launch.table, row), f"{launch.id}: hand-off row {place} is another's"
            self._unread[stage - 1].discard(place)
        if stage < self._stages - 1:
            assert place not in self._unread[stage], f"{launch.id}: overwrites a hand-off"
            self._handoff[stage][place] = (launch.table, row)
            self._unread[stage].add(place)

    def _judge(self, table: Table) -> None:
        """The verdict words of a window, from the last stage's cells."""
        assert table.context not in self._words, f"context {table.context}: verdict not taken"
        words = np.zeros((self._shape.row_limit, 4), np.int32)
        draws = []
        for i, row in enumerate(table.rows):
            cells = self._cells[-1][row.slot][: row.position + 1]
            token, *words[i, 2:] = draw([cell[1] for cell in cells if cell])
            draws.append(token)
        for i, segment in enumerate(table.segments):
            first, accepted = segment.first_row, 0
            while (
                accepted + 1 < segment.count
                and draws[first + accepted] == table.rows[first + accepted + 1].token
            ):
                accepted += 1
            words[i, :2] = accepted, draws[first + accepted]
        self._words[table.context] = words
