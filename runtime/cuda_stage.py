"""A stage on a card: its stream, its graphs, the ring of its tables, and what it has in flight."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_runtime.cuda_driver import Driver
from strata_runtime.device import Done
from strata_runtime.launch import Launch


@dataclass(frozen=True)
class Card:
    """A card, and the context that a stage works in: all of it, or some of its multiprocessors."""

    ordinal: int
    context: Any
    green: Any = None


@dataclass(frozen=True)
class Queued:
    """A launch with its entry of the ring, whose two events say when it begins and ends."""

    launch: Launch
    entry: int


class CudaStage:
    """One queue. An entry of the ring has two events: they are free again when the entry is."""

    def __init__(self, driver: Driver, card: Card, ring: npt.NDArray[np.int32], stage: int) -> None:
        """A stream and the ring's events, in the card's context."""
        self._driver, self.card, self.ring, self._stage = driver, card, ring, stage
        self.graphs: dict[str, Any] = {}
        self.table_rows: dict[str, int] = {}
        self.submitted = 0
        self.queue: deque[Queued] = deque()
        self.enter()
        flags = driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        if card.green is None:
            self.stream = driver("cuStreamCreateWithPriority", flags, 0)
        else:
            self.stream = driver("cuGreenCtxStreamCreate", card.green, flags, 0)
        self._begins = [driver("cuEventCreate", 0) for _ in ring]
        self.ends = [driver("cuEventCreate", 0) for _ in ring]

    def enter(self) -> None:
        """Make the stage's context the thread's."""
        self._driver("cuCtxSetCurrent", self.card.context)

    def replay(self, launch: Launch, entry: int) -> None:
        """Queue a graph between its events; its table is in the ring, its waits are queued."""
        call, stream = self._driver, self.stream
        call("cuEventRecord", self._begins[entry], stream)
        call("cuGraphLaunch", self.graphs[launch.program], stream)
        call("cuEventRecord", self.ends[entry], stream)
        self.queue.append(Queued(launch, entry))
        self.submitted += 1

    def ended(self) -> bool:
        """Is the oldest launch complete? DeviceError where the card is lost."""
        api = self._driver.api
        (status,) = api.cuEventQuery(self.ends[self.queue[0].entry])
        if int(status) == int(api.CUresult.CUDA_ERROR_NOT_READY):
            return False
        if int(status):
            self._driver.fail("cuEventQuery", status, f"stage {self._stage}")
        return True

    def take(self, base: Any) -> Done:
        """The oldest launch's completion, waited for; times count from the event `base`."""
        queued, call = self.queue[0], self._driver
        end = self.ends[queued.entry]
        call("cuEventSynchronize", end)
        start_ms = call("cuEventElapsedTime", base, self._begins[queued.entry])
        elapsed_ms = call("cuEventElapsedTime", self._begins[queued.entry], end)
        self.queue.popleft()
        return Done(queued.launch.id, self._stage, start_ms / 1e3, elapsed_ms)

    def timed(self, graph: Any) -> float:
        """Replay a graph alone, and wait for it; its milliseconds."""
        call, begin, end = self._driver, self._begins[0], self.ends[0]
        call("cuEventRecord", begin, self.stream)
        call("cuGraphLaunch", graph, self.stream)
        call("cuEventRecord", end, self.stream)
        call("cuEventSynchronize", end)
        elapsed: float = call("cuEventElapsedTime", begin, end)
        return elapsed

    def close(self) -> None:
        """Let what is queued end, and destroy what was made."""
        call = self._driver
        self.enter()
        call("cuStreamSynchronize", self.stream)
        for graph in self.graphs.values():
            call("cuGraphExecDestroy", graph)
        for event in (*self._begins, *self.ends):
            call("cuEventDestroy", event)
        call("cuStreamDestroy", self.stream)
