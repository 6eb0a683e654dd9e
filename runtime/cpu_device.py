"""The CPU device: one worker a stage replays the programs with the reference kernels."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from strata_kernels.registry import KERNELS
from strata_kernels.selftest import unequal_attention, unequal_linear
from strata_kernels.spec import Arg
from strata_kernels.table import ROW_LIMIT
from strata_runtime.arenas import Arenas
from strata_runtime.bundle_format import Call, Program
from strata_runtime.bundle_load import Bundle
from strata_runtime.device import Done
from strata_runtime.errors import BundleError, DeviceError
from strata_runtime.gguf_file import GgufFile
from strata_runtime.launch import Launch, TableWriter
from strata_runtime.records import decode

#: A kernel call with everything that it needs: reference, params, tensors.
BoundCall = tuple[
    Callable[[Any, Mapping[str, torch.Tensor]], None], Any, Mapping[str, torch.Tensor]
]


def bind(program: Program, arenas: Arenas) -> tuple[BoundCall, ...]:
    """A program's calls with their arguments in memory; BundleError for an unknown kernel."""
    return tuple(_bind_call(program, i, arenas) for i in range(len(program.calls)))


def _bind_call(program: Program, index: int, arenas: Arenas) -> BoundCall:
    call = program.calls[index]
    where = f"{program.stage}.{program.name}, call {index}"
    spec = KERNELS.get(call.kernel)
    if spec is None:
        raise BundleError(f"{where}: unknown kernel {call.kernel!r}; compile again")
    params = decode(spec.params, call.params, f"{where}: {call.kernel}")
    try:
        _check_args(call, spec.args(params))
        args = {name: arenas.argument(a) for name, a in call.args.items()}
    except BundleError as error:
        raise BundleError(f"{where}: {call.kernel}: {error}; compile again") from error
    return spec.reference, params, args


def _check_args(call: Call, declared: tuple[Arg, ...]) -> None:
    """BundleError where a call's arguments are not what the kernel declares for its params."""
    if odd := {a.name for a in declared} ^ call.args.keys():
        raise BundleError(f"arguments missing or unknown: {', '.join(sorted(odd))}")
    for arg in declared:
        given = call.args[arg.name]
        shape = (*given.shape[:1], *arg.shape[1:]) if arg.shape[0] == -1 else arg.shape
        if (given.dtype, given.shape) != (arg.dtype, shape):
            raise BundleError(
                f"{arg.name} is {given.dtype} {given.shape}, expected {arg.dtype} {shape}"
            )


def replay(calls: tuple[BoundCall, ...]) -> None:
    """Run a bound program: all that it reads is in the arenas, the table among it."""
    for reference, params, bound in calls:
        reference(params, bound)


def check_products(programs: Iterable[Program]) -> None:
    """DeviceError where torch gives a row other bits in other products of these programs.

    Their calls must have been bound, so that their params are what they should be.
    """
    linears: dict[tuple[int, int], set[int]] = {}
    heads: set[tuple[int, int]] = set()
    for program in programs:
        for call in program.calls:
            p = call.params
            for outer in _outputs(call):
                linears.setdefault((p["inner"], outer), set()).add(program.rows)
            if call.kernel == "attention":
                heads.add((p["heads"] // p["kv_heads"], p["head_dim"]))
    sizes = {shape: {n for n in rows if n % ROW_LIMIT == 0} for shape, rows in linears.items()}
    wrong = [f"linear {i} x {o}" for (i, o), n in sizes.items() if unequal_linear(i, o, n)]
    wrong += [f"attention {g} x {d}" for g, d in heads if unequal_attention(g, d)]
    if wrong:
        raise DeviceError(
            f"cpu: torch {torch.__version__} on this machine gives a row other bits in other "
            f"company ({', '.join(wrong)}): texts would depend on it; the pinned torch was tested"
        )


def _outputs(call: Call) -> tuple[int, ...]:
    """The output widths of a call's products."""
    if call.kernel == "linears":
        return tuple(part["outer"] for part in call.params["parts"])
    return (call.params["outer"],) if call.kernel in ("linear", "gated") else ()


def default_threads(stages: int) -> int:
    """Threads for each stage: the cores shared out, one of them left to the host.

    OpenMP's threads wait for each other some hundred times a window. On a core that something else
    needs as well, each wait costs a time slice: measured, a window then takes 15 times as long.
    """
    return max(1, ((os.cpu_count() or 1) - 1) // stages)


@dataclass
class _Stage:
    """One stage's programs and ring, and the single thread that is its queue."""

    programs: dict[str, tuple[int, tuple[BoundCall, ...]]]
    ring: npt.NDArray[np.int32]
    readers: list[int]  # the last launch that read each entry of the ring
    queue: ThreadPoolExecutor
    submitted: int = 0


class CpuDevice:
    """Arenas, one worker thread a stage, and the launches that are not complete."""

    def __init__(
        self,
        bundle: Bundle,
        gguf: GgufFile,
        threads: int | None = None,
        draft: GgufFile | None = None,
    ) -> None:
        """Allocate, fill, bind, and start the workers; `threads` for each (default: its share).

        `draft` is the drafter's own file, where the bundle has one.
        """
        manifest = bundle.manifest
        if "cpu" not in manifest.memory:
            found = ", ".join(manifest.targets)
            raise DeviceError(f"{bundle.folder}: compiled for {found}, not for cpu; add the target")
        self.arenas = Arenas(manifest.memory["cpu"])
        self.arenas.fill(gguf, draft)
        self._writer = TableWriter(manifest.table)
        self._verdict = self.arenas.buffer(f"{len(manifest.stages) - 1}/verdict").numpy()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._pending: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._stages = [self._stage(bundle, s) for s in range(len(manifest.stages))]
        self._start(bundle, threads or default_threads(len(self._stages)))

    def _stage(self, bundle: Bundle, stage: int) -> _Stage:
        programs = {
            name: (p.table_rows, bind(p, self.arenas))
            for (s, name), p in bundle.programs.items()
            if s == stage
        }
        ring = self.arenas.buffer(f"{stage}/ring").numpy()
        return _Stage(programs, ring, [0] * len(ring), ThreadPoolExecutor(1, f"stage {stage}"))

    def _start(self, bundle: Bundle, threads: int) -> None:
        """Check the products where they will run: with its worker's own threads.

        No torch here: a team of OpenMP threads of the caller's would count against the workers'.
        """

        def check(stage: int) -> None:
            torch.set_num_threads(threads)
            check_products(p for (s, _), p in bundle.programs.items() if s == stage)

        started = [s.queue.submit(check, i) for i, s in enumerate(self._stages)]
        try:
            for future in started:
                future.result()
        except BaseException:
            self.close()
            raise

    def submit(self, launch: Launch) -> None:
        """Write the launch's table into the stage's ring, and queue it."""
        stage = self._stages[launch.stage]
        entry = stage.submitted % len(stage.ring)
        self._await(stage.readers[entry])
        rows, _ = stage.programs[launch.program]
        self._writer.write(launch, rows, stage.ring[entry])
        with self._lock:
            self._pending[launch.id] = threading.Event()
        stage.readers[entry] = launch.id
        stage.submitted += 1
        stage.queue.submit(self._run, stage, launch)

    def wait(self) -> Done:
        """The next completion; blocks until there is one."""
        return self._done.get()

    def verdict(self, context: int) -> npt.NDArray[np.int32]:
        """A copy of a window context's verdict words, shape (row limit, 4)."""
        words: npt.NDArray[np.int32] = self._verdict[context].copy()
        return words

    def drafts(self, context: int) -> npt.NDArray[np.int32]:
        """A copy of a window context's draft words, shape (row limit, 1 + 2 · most drafts)."""
        buffer = self.arenas.buffer(f"{len(self._stages) - 1}/drafts")
        words: npt.NDArray[np.int32] = buffer[context].numpy().copy()
        return words

    def close(self) -> None:
        """Let what is queued end, and stop the workers."""
        for stage in self._stages:
            stage.queue.shutdown()

    def _await(self, launch_id: int) -> None:
        """Block until a launch is complete; one that is no longer pending is."""
        with self._lock:
            event = self._pending.get(launch_id)
        if event is not None:
            event.wait()

    def _run(self, stage: _Stage, launch: Launch) -> None:
        """In the stage's worker: wait for other stages, replay, signal."""
        for launch_id in launch.waits:
            self._await(launch_id)
        start, error = time.perf_counter(), None
        try:
            with torch.inference_mode():
                replay(stage.programs[launch.program][1])
        except BaseException as caught:  # the engine raises it in its own thread
            error = caught
        elapsed = (time.perf_counter() - start) * 1e3
        with self._lock:
            self._pending.pop(launch.id).set()
        self._done.put(Done(launch.id, launch.stage, start, elapsed, error))
