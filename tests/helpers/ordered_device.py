"""A device that replays a bundle in the test's own thread, in an order drawn from a seed.

Which stage goes next, and how far the stages run ahead of what the host hears of, is as random as
the waits allow, and the same every time. What the launches left can be looked at after each.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from strata_runtime.arenas import Arenas
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cpu_device import bind, replay
from strata_runtime.device import Done
from strata_runtime.launch import Launch, TableWriter

Ints = npt.NDArray[np.int32]


class OrderedDevice:
    """Implements `Device`; AssertionError where it would wait for ever."""

    def __init__(self, bundle: Bundle) -> None:
        """Allocate, fill and bind, as the CPU device does."""
        manifest = bundle.manifest
        self.arenas = Arenas(manifest.memory["cpu"])
        self.arenas.fill(open_weights(bundle, bundle.folder), open_draft(bundle, bundle.folder))
        self._last = len(manifest.stages) - 1
        stages = range(len(manifest.stages))
        self._bound = {k: (p.table_rows, bind(p, self.arenas)) for k, p in bundle.programs.items()}
        self._writer = TableWriter(manifest.table)
        self._rings = [self.arenas.buffer(f"{stage}/ring").numpy() for stage in stages]
        self._submitted = [0 for _ in stages]
        self.begin(0)

    def begin(self, seed: int, after: Callable[[Launch], None] = lambda launch: None) -> None:
        """Another run in another order, with launch ids from 1; `after` sees what each one left."""
        self._random = random.Random(seed)
        self._eager = self._random.random()  # how far execution runs ahead of what is reported
        self._after = after
        self._queues: list[deque[Launch]] = [deque() for _ in self._rings]
        self._ran: list[deque[Done]] = [deque() for _ in self._rings]
        self._complete: set[int] = set()
        self._readers: dict[tuple[int, int], int] = {}

    @property
    def in_flight(self) -> int:
        """Launches that have not been reported."""
        return sum(len(q) for q in (*self._queues, *self._ran))

    @property
    def awaited(self) -> set[int]:
        """Slots of launches that have not run."""
        return {s.slot for queue in self._queues for x in queue for s in x.table.segments}

    def submit(self, launch: Launch) -> None:
        """Write the table into the stage's ring, once its entry has been read, and queue it."""
        ring = self._rings[launch.stage]
        entry = self._submitted[launch.stage] % len(ring)
        reader = self._readers.get((launch.stage, entry))
        while reader is not None and reader not in self._complete:
            assert self._run_one(), "the ring waits for ever"
        rows, _ = self._bound[launch.stage, launch.program]
        self._writer.write(launch, rows, ring[entry])
        self._readers[launch.stage, entry] = launch.id
        self._submitted[launch.stage] += 1
        self._queues[launch.stage].append(launch)

    def wait(self) -> Done:
        """Run what may run, in random order, until one completion is reported."""
        while True:
            done = [q for q in self._ran if q]
            if done and self._random.random() >= self._eager:
                return self._random.choice(done).popleft()
            if not self._run_one():
                assert done, "nothing is in flight: this would wait for ever"
                return self._random.choice(done).popleft()

    def verdict(self, context: int) -> Ints:
        """A copy of a window context's verdict words."""
        return self._words("verdict", context)

    def drafts(self, context: int) -> Ints:
        """A copy of a window context's draft words."""
        return self._words("drafts", context)

    def close(self) -> None:
        """Nothing runs."""

    def _words(self, name: str, context: int) -> Ints:
        words: Ints = self.arenas.buffer(f"{self._last}/{name}")[context].numpy().copy()
        return words

    def _run_one(self) -> bool:
        """Run the next launch of a stage, if that of any may run."""
        ready = [q for q in self._queues if q and self._complete >= {*q[0].waits}]
        if not ready:
            return False
        launch, error = self._random.choice(ready).popleft(), None
        try:
            with torch.inference_mode():
                replay(self._bound[launch.stage, launch.program][1])
        except Exception as caught:
            error = caught
        self._after(launch)
        self._complete.add(launch.id)
        ms = self._random.uniform(0.5, 2.0)
        self._ran[launch.stage].append(Done(launch.id, launch.stage, 0.0, ms, error))
        return True
