"""Streams of a card that runs whenever, in any order that its waits allow, drawn from a seed.

What is queued runs at the latest when the host waits for it or asks for it; which stream goes next
is drawn anew for every kernel. So a wait that is missing shows up.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum


class CUresult(IntEnum):
    """The statuses that are used here."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


@dataclass(eq=False)
class Thing:
    """Whatever was made: a stream, an event, a graph, a library, a context; `of` is its context."""

    kind: str
    of: Thing | None = None


@dataclass
class Record:
    """A place in a stream; complete at a time in ms, once the stream has come so far."""

    done: bool = False
    time: float = 0.0


@dataclass(frozen=True)
class Wait:
    """A stream goes on behind it once the record is complete."""

    record: Record


@dataclass(frozen=True)
class Node:
    """One launch of an entry; a dependent one may begin before the one before it has ended."""

    entry: str
    grid: tuple[int, int, int]
    threads: int
    shared: int
    pointers: tuple[int, ...]
    dependent: bool = False


@dataclass(eq=False)
class Event(Thing):
    """An event; `record` is the latest of its records."""

    record: Record | None = None

    @property
    def done(self) -> bool:
        """Is it complete? One that was never recorded is."""
        return self.record is None or self.record.done


@dataclass(eq=False)
class Stream(Thing):
    """A queue of what has not run; while it captures, `nodes` are the kernels."""

    queue: deque[Record | Wait | Node] = field(default_factory=deque)
    nodes: list[Node] | None = None

    @property
    def ready(self) -> bool:
        """Can it go on?"""
        head = self.queue[0] if self.queue else None
        return head is not None and (not isinstance(head, Wait) or head.record.done)


class Streams:
    """All streams of a card; `run` does what a node does."""

    def __init__(self, run: Callable[[Node], None], seed: int) -> None:
        self.all: list[Stream] = []
        self.lost: CUresult | None = None  # what every call returns from now on
        self.fault: BaseException | None = None  # of the kernel that did it
        self.ran = 0  # nodes
        self._run = run
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """Another order from now on; how far the card runs ahead of the host is drawn, too."""
        self.random = random.Random(seed)
        self.eager = self.random.choice([0.0, 0.3, 0.9])
        self._clock = 0.0

    def queued(self) -> None:
        """Something was queued: run as far ahead as is drawn."""
        while not self.lost and self.random.random() < self.eager and self._ready():
            self._step()

    def run_until(self, complete: Callable[[], bool], most: float = float("inf")) -> None:
        """Run until that is so, or so many steps; AssertionError where it never will be."""
        steps = 0
        while not self.lost and not complete() and steps < most:
            self._step()
            steps += 1

    def _ready(self) -> list[Stream]:
        return [stream for stream in self.all if stream.ready]

    def _step(self) -> None:
        """One thing of one stream; a kernel that fails takes the card with it."""
        ready = self._ready()
        assert ready, "every stream waits for ever"
        what = self.random.choice(ready).queue.popleft()
        self._clock += self.random.uniform(0.01, 0.1)
        if isinstance(what, Record):
            what.done, what.time = True, self._clock
        elif isinstance(what, Node):
            self.ran += 1
            try:
                self._run(what)
            except Exception as fault:
                self.lost, self.fault = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, fault
