"""The CUDA device: every program captured once into a graph at load, then only replayed."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from strata_runtime.arenas import Arenas
from strata_runtime.bundle_format import Arena, Argument, Program
from strata_runtime.bundle_load import Bundle
from strata_runtime.cuda_driver import Driver
from strata_runtime.cuda_graphs import Kernels, capture, target_of
from strata_runtime.cuda_stage import Card, CudaStage
from strata_runtime.device import Done
from strata_runtime.errors import DeviceError
from strata_runtime.gguf_file import GgufFile
from strata_runtime.launch import Launch, TableWriter

LOG = logging.getLogger("strata")


class CudaDevice:
    """Arenas on a card, a stream a stage, and the launches that are not complete.

    Waits become waits of streams for events. Nothing is allocated, captured or loaded after the
    constructor: `driver.made` counts what was.
    """

    def __init__(self, bundle: Bundle, gguf: GgufFile, draft: GgufFile | None = None) -> None:
        """Load, bind, capture, upload, freeze; `draft` is the drafter's own file, if it has one.

        DeviceError where there is no driver or card, where the bundle is for other cards, or where
        the card has too little memory.
        """
        manifest = bundle.manifest
        self.driver = Driver()
        self._card = _one_card([stage.device for stage in manifest.stages])
        _check_torch(self._card)
        self._device = self.driver("cuDeviceGet", self._card)
        context = self.driver("cuDevicePrimaryCtxRetain", self._device)
        self.driver("cuCtxSetCurrent", context)
        architecture = self._architecture()
        target = target_of(manifest, f"cuda:{self._card}", architecture)
        plan = manifest.memory["cuda"]
        self._check_memory(sum(a.bytes for a in plan.arenas.values() if not a.host))
        self.arenas = Arenas(plan, self._allocate)
        self.arenas.fill(gguf, draft)
        self._writer = TableWriter(manifest.table)
        cards = self._cards(context, len(manifest.stages), manifest.partition)
        self._stages = [self._stage(i, card) for i, card in enumerate(cards)]
        self._kernels = Kernels(self.driver, bundle, target, dependent=architecture >= (9, 0))
        self._capture(bundle)
        last = len(self._stages) - 1
        self._verdicts = self.arenas.buffer(f"{last}/verdict").numpy()
        self._drafts = self._host_words(f"{last}/drafts")
        self._running: dict[int, Any] = {}  # launch to its end's event
        self._done: deque[Done] = deque()
        self._base = self.driver("cuEventCreate", 0)
        self.driver("cuEventRecord", self._base, self._stages[0].stream)
        torch.cuda.synchronize(self._card)
        self.driver.freeze()

    @property
    def torch_device(self) -> str:
        """The card as torch names it."""
        return f"cuda:{self._card}"

    def _architecture(self) -> tuple[int, int]:
        kinds = self.driver.api.CUdevice_attribute
        major = kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        minor = kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        found = [self.driver("cuDeviceGetAttribute", a, self._device) for a in (major, minor)]
        return found[0], found[1]

    def _check_memory(self, needed: int) -> None:
        free, _ = self.driver("cuMemGetInfo")
        if needed > free:
            raise DeviceError(
                f"cuda:{self._card}: the bundle needs {needed >> 20} MiB, {free >> 20} MiB are "
                f"free: {-(-(needed - free) // (1 << 20))} MiB short; compile with fewer slots, "
                "a shorter context or a smaller model"
            )

    def _allocate(self, arena: Arena) -> torch.Tensor:
        """Zeroed bytes: on the card, or pinned on the host."""
        if arena.host:
            return torch.zeros(arena.bytes, dtype=torch.uint8, pin_memory=True)
        return torch.zeros(arena.bytes, dtype=torch.uint8, device=self.torch_device)

    def _cards(self, context: Any, stages: int, partition: str) -> list[Card]:
        """The context of each stage: all of the card, or an equal share of its multiprocessors."""
        if partition != "sms":
            return [Card(self._card, context)] * stages
        return [Card(self._card, c, green) for c, green in self._green_contexts(stages)]

    def _green_contexts(self, stages: int) -> list[tuple[Any, Any]]:
        driver, api = self.driver, self.driver.api
        sms = api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        resource = driver("cuDeviceGetDevResource", self._device, sms)
        groups = self._shares(resource, stages)
        found = []
        for group in groups[:stages]:
            described = driver("cuDevResourceGenerateDesc", [group], 1)
            flags = api.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
            green = driver("cuGreenCtxCreate", described, self._device, flags)
            found.append((driver("cuCtxFromGreenCtx", green), green))
        return found

    def _shares(self, resource: Any, stages: int) -> Sequence[Any]:
        """Equal groups of multiprocessors, as large as there are so many of: a card has a step."""
        for share in range(resource.sm.smCount // stages, 0, -1):
            groups, made, _ = self.driver("cuDevSmResourceSplitByCount", stages, resource, 0, share)
            if made >= stages:
                return list(groups)
        raise DeviceError(
            f"cuda:{self._card}: {resource.sm.smCount} multiprocessors are not enough for "
            f"{stages} stages with partition: sms"
        )

    def _stage(self, index: int, card: Card) -> CudaStage:
        ring = self.arenas.buffer(f"{index}/ring").numpy()
        return CudaStage(self.driver, card, ring, index)

    def _capture(self, bundle: Bundle) -> None:
        """Every program of every stage; says with what time and memory."""
        for (index, name), program in bundle.programs.items():
            stage = self._stages[index]
            stage.enter()
            start, (free, _) = time.perf_counter(), self.driver("cuMemGetInfo")
            stage.graphs[name] = capture(
                self.driver, stage.stream, program, self._kernels, self._address
            )
            stage.table_rows[name] = program.table_rows
            taken = (free - self.driver("cuMemGetInfo")[0]) / (1 << 20)
            ms = (time.perf_counter() - start) * 1e3
            LOG.info(
                "stage %d, %s: %d nodes, %.1f ms, %.1f MiB",
                *(index, name, len(program.calls), ms, taken),
            )

    def _address(self, argument: Argument) -> int:
        return self.arenas.address(argument)

    def _host_words(self, name: str) -> npt.NDArray[np.int32] | None:
        """A buffer in pinned memory, where the bundle has it."""
        return self.arenas.buffer(name).numpy() if self.arenas.has(name) else None

    def submit(self, launch: Launch) -> None:
        """Write the launch's table into the stage's ring, queue its waits, and queue it."""
        stage = self._stages[launch.stage]
        entry = stage.submitted % len(stage.ring)
        while stage.queue and len(stage.queue) >= len(stage.ring):
            self._take(stage)
        self._writer.write(launch, stage.table_rows[launch.program], stage.ring[entry])
        stage.enter()
        for other in launch.waits:
            if (event := self._running.get(other)) is not None:
                self.driver("cuStreamWaitEvent", stage.stream, event, 0)
        stage.replay(launch, entry)
        self._running[launch.id] = stage.ends[entry]

    def wait(self) -> Done:
        """The next completion; blocks until there is one. DeviceError where none can come."""
        while not self._done:
            busy = [stage for stage in self._stages if stage.queue]
            if not busy:
                raise DeviceError("cuda: nothing is in flight: this would wait for ever")
            self._poll(busy)
        return self._done.popleft()

    def _poll(self, busy: Sequence[CudaStage]) -> None:
        """Take what is complete; a stage that is alone is waited for."""
        if len(busy) == 1:
            self._take(busy[0])
            return
        for stage in busy:
            if stage.ended():
                self._take(stage)

    def _take(self, stage: CudaStage) -> None:
        done = stage.take(self._base)
        del self._running[done.launch_id]
        self._done.append(done)

    def verdict(self, context: int) -> npt.NDArray[np.int32]:
        """A copy of a window context's verdict words, shape (row limit, 4)."""
        words: npt.NDArray[np.int32] = self._verdicts[context].copy()
        return words

    def drafts(self, context: int) -> npt.NDArray[np.int32]:
        """A copy of a window context's draft words, shape (row limit, 1 + 2 · most drafts)."""
        assert self._drafts is not None, "no draft program has run"
        words: npt.NDArray[np.int32] = self._drafts[context].copy()
        return words

    @contextmanager
    def captured(self, program: Program) -> Iterator[Callable[[], float]]:
        """Another program, for measurements: replays it, and returns the milliseconds.

        Only while nothing is in flight: it is made while the device is not frozen.
        """
        stage = self._stages[program.stage]
        assert not any(s.queue for s in self._stages), "something is in flight"
        stage.enter()
        self.driver.frozen = False
        graph = capture(self.driver, stage.stream, program, self._kernels, self._address)
        self.driver.frozen = True
        try:
            yield lambda: stage.timed(graph)
        finally:
            self.driver("cuGraphExecDestroy", graph)
            counter = self.arenas.buffer(f"{program.stage}/counter")  # which it has advanced
            counter.fill_(stage.submitted)
            torch.cuda.synchronize(self._card)

    def close(self) -> None:
        """Let what is queued end, and free what was made."""
        self.driver("cuEventDestroy", self._base)
        for stage in self._stages:
            stage.close()
        self._kernels.close()


def _one_card(devices: Sequence[str | None]) -> int:
    """The card of all stages; those that name none are on cuda:0."""
    found = {device or "cuda:0" for device in devices if device != "cpu"} or {"cuda:0"}
    if len(found) > 1:
        raise DeviceError(f"cuda: stages on {', '.join(sorted(found))}: only one card as yet")
    return int(found.pop().partition(":")[2])


def _check_torch(card: int) -> None:
    if not torch.cuda.is_available():
        raise DeviceError("cuda: torch here was built without CUDA; install the usual build")
    if card >= torch.cuda.device_count():
        raise DeviceError(f"cuda:{card}: there are {torch.cuda.device_count()} cards")
