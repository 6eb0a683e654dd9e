"""Stands for the module `cuda.bindings.driver`; the card's streams are in `fake_streams.py`."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from fake_streams import CUresult, Event, Node, Record, Stream, Streams, Thing, Wait
from strata_compile.cubins.resources import read_resources
from strata_runtime.errors import BundleError

PLAIN_SHARED = 48 << 10  #: dynamic shared bytes that a function may have without being asked
CARD_SHARED = 227 << 10  #: and at most
SM_STEP = 8  #: multiprocessors come in groups of so many


class Failure(Exception):
    """A call's status, where it is not success."""

    def __init__(self, status: CUresult) -> None:
        super().__init__(status.name)
        self.status = status


@dataclass(eq=False)
class Graph(Thing):
    """Kernels, one behind the other."""

    nodes: tuple[Node, ...] = ()


@dataclass(eq=False)
class Library(Thing):
    """A loaded cubin."""

    names: frozenset[str] = frozenset()


@dataclass
class Function:
    """An entry in a context."""

    entry: str
    context: Thing
    shared: int = PLAIN_SHARED


class Struct(SimpleNamespace):
    """Any of the driver's structs: fields are what is assigned."""

    def __init__(self) -> None:
        super().__init__(value=SimpleNamespace(), attrs=[], numAttrs=0)


def _names(*values: str) -> Any:
    """An enumeration of the driver's whose members are their own names."""
    return SimpleNamespace(**{value: value for value in values})


def _multiprocessors(count: int) -> Any:
    return SimpleNamespace(sm=SimpleNamespace(smCount=count))


class FakeDriver:
    """The module's functions by name; each returns a tuple, its status first.

    `arguments` says how many an entry has, `run` does what a node does. Tests may set the card's
    properties, and in `failing` what a function returns. Every call of a function is in `calls`.
    """

    CUresult = CUresult
    CUlaunchConfig = CUlaunchAttribute = Struct
    CUlaunchAttributeID = _names("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION")
    CUstreamCaptureMode = _names("CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
    CUstream_flags = _names("CU_STREAM_NON_BLOCKING")
    CUfunction_attribute = _names("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")
    CUdevResourceType = _names("CU_DEV_RESOURCE_TYPE_SM")
    CUgreenCtxCreate_flags = _names("CU_GREEN_CTX_DEFAULT_STREAM")
    CUdevice_attribute = _names(
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    )

    def __init__(
        self,
        arguments: Callable[[str], int] = lambda entry: 0,
        run: Callable[[Node], None] = lambda node: None,
        seed: int = 0,
    ) -> None:
        self.cards, self.architecture, self.free, self.sms = 1, (9, 0), 1 << 40, 132
        self.library_missing = False
        self.failing: dict[str, CUresult] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.alive: Counter[str] = Counter()  # things that were made and not destroyed, by kind
        self.streams = Streams(run, seed)
        self._arguments = arguments
        self._current: Thing | None = None
        self._primary = Thing("primary context")
        self._gone: set[Thing] = set()

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        function = getattr(type(self), f"_{name}", None) if name.startswith("cu") else None
        if function is None:
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, args))
            try:
                if status := self.streams.lost or self.failing.get(name):
                    raise Failure(status)
                values = function(self, *args)
                if self.streams.lost:
                    raise Failure(self.streams.lost)
            except Failure as failure:
                return (failure.status,)
            return (CUresult.CUDA_SUCCESS, *values)

        return call

    def cuGetErrorString(self, status: IntEnum) -> tuple[IntEnum, bytes]:
        """A status in words."""
        return CUresult.CUDA_SUCCESS, status.name.lower().replace("_", " ").encode()

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of every call of a function."""
        return [args for called, args in self.calls if called == name]

    # ---- the card and its contexts

    def _cuInit(self, flags: int) -> tuple[()]:
        if self.library_missing:  # what the package raises
            raise RuntimeError("Failed to dlopen libcuda.so.1")
        return ()

    def _cuDeviceGetCount(self) -> tuple[int]:
        return (self.cards,)

    def _cuDeviceGet(self, ordinal: int) -> tuple[int]:
        _demand(ordinal < self.cards, CUresult.CUDA_ERROR_INVALID_DEVICE)
        return (ordinal,)

    def _cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[int]:
        return (self.architecture[attribute.endswith("MINOR")],)

    def _cuMemGetInfo(self) -> tuple[int, int]:
        _demand(self._current is not None, CUresult.CUDA_ERROR_INVALID_HANDLE)
        return self.free, 1 << 41

    def _cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Thing]:
        return (self._primary,)

    def _cuCtxSetCurrent(self, context: Thing) -> tuple[()]:
        self._current = context
        return ()

    def _cuDeviceGetDevResource(self, device: int, kind: str) -> tuple[Any]:
        return (_multiprocessors(self.sms),)

    def _cuDevSmResourceSplitByCount(
        self, groups: int, resource: Any, flags: int, least: int
    ) -> tuple[list[Any], int, Any]:
        size = -(-least // SM_STEP) * SM_STEP
        count = min(groups, resource.sm.smCount // size)
        rest = _multiprocessors(resource.sm.smCount - count * size)
        return [_multiprocessors(size) for _ in range(count)], count, rest

    def _cuDevResourceGenerateDesc(self, resources: Sequence[Any], count: int) -> tuple[Any]:
        return (SimpleNamespace(resources=resources[:count]),)

    def _cuGreenCtxCreate(self, described: Any, device: int, flags: str) -> tuple[Thing]:
        return (self._made(Thing("green context", Thing("context"))),)

    def _cuCtxFromGreenCtx(self, green: Thing) -> tuple[Thing | None]:
        return (green.of,)

    def _cuGreenCtxDestroy(self, green: Thing) -> tuple[()]:
        return self._destroyed(green)

    # ---- kernels

    def _cuLibraryLoadData(self, code: bytes, *options: object) -> tuple[Library]:
        try:
            found = frozenset(read_resources(code))
        except BundleError as error:
            raise Failure(CUresult.CUDA_ERROR_INVALID_IMAGE) from error
        return (self._made(Library("library", names=found)),)

    def _cuLibraryGetKernel(self, library: Library, name: bytes) -> tuple[str]:
        _demand(name.decode() in library.names, CUresult.CUDA_ERROR_NOT_FOUND)
        return (name.decode(),)

    def _cuLibraryUnload(self, library: Library) -> tuple[()]:
        return self._destroyed(library)

    def _cuKernelGetFunction(self, kernel: str) -> tuple[Function]:
        assert self._current is not None
        return (Function(kernel, self._current),)

    def _cuFuncSetAttribute(self, function: Function, what: str, value: int) -> tuple[()]:
        _demand(value <= CARD_SHARED, CUresult.CUDA_ERROR_INVALID_VALUE)
        function.shared = value
        return ()

    def _cuLaunchKernel(self, function: Function, *shape: Any) -> tuple[()]:
        *grid, threads, _, _, shared, stream, places, _ = shape
        return self._launch(function, (*grid,), threads, shared, stream, places, False)

    def _cuLaunchKernelEx(self, c: Any, function: Function, places: int, extra: int) -> tuple[()]:
        shape = (c.gridDimX, c.gridDimY, c.gridDimZ), c.blockDimX, c.sharedMemBytes
        dependent = any(a.value.programmaticStreamSerializationAllowed for a in c.attrs)
        _demand(len(c.attrs) == c.numAttrs, CUresult.CUDA_ERROR_INVALID_VALUE)
        _demand(not dependent or self.architecture >= (9, 0), CUresult.CUDA_ERROR_INVALID_VALUE)
        return self._launch(function, *shape, c.hStream, places, dependent)

    def _launch(
        self,
        function: Function,
        grid: Any,
        threads: int,
        shared: int,
        stream: Stream,
        places: int,
        dependent: bool,
    ) -> tuple[()]:
        """Arguments are read now: at `places` are the addresses of the pointers."""
        _demand(function.context is stream.of, CUresult.CUDA_ERROR_INVALID_HANDLE)
        _demand(shared <= function.shared, CUresult.CUDA_ERROR_INVALID_VALUE)
        found = (ctypes.c_uint64 * self._arguments(function.entry)).from_address(places)
        pointers = tuple(ctypes.c_uint64.from_address(place).value for place in found)
        node = Node(function.entry, grid, threads, shared, pointers, dependent)
        if stream.nodes is None:
            stream.queue.append(node)
        else:
            stream.nodes.append(node)
        return ()

    # ---- graphs

    def _cuStreamBeginCapture(self, stream: Stream, mode: str) -> tuple[()]:
        assert stream.nodes is None, "captures already"
        stream.nodes = []
        return ()

    def _cuStreamEndCapture(self, stream: Stream) -> tuple[Graph]:
        nodes, stream.nodes = stream.nodes, None
        return (self._made(Graph("graph", nodes=tuple(nodes or ()))),)

    def _cuGraphInstantiate(self, graph: Graph, flags: int) -> tuple[Graph]:
        return (self._made(Graph("executable", nodes=graph.nodes)),)

    def _cuGraphUpload(self, graph: Graph, stream: Stream) -> tuple[()]:
        return ()

    def _cuGraphDestroy(self, graph: Graph) -> tuple[()]:
        return self._destroyed(graph)

    def _cuGraphExecDestroy(self, graph: Graph) -> tuple[()]:
        return self._destroyed(graph)

    def _cuGraphLaunch(self, graph: Graph, stream: Stream) -> tuple[()]:
        assert graph.kind == "executable" and graph not in self._gone
        stream.queue.extend(graph.nodes)
        self.streams.queued()
        return ()

    # ---- streams and events

    def _cuStreamCreateWithPriority(self, flags: str, priority: int) -> tuple[Stream]:
        return self._stream(self._current)

    def _cuGreenCtxStreamCreate(self, green: Thing, flags: str, priority: int) -> tuple[Stream]:
        return self._stream(green.of)

    def _stream(self, context: Thing | None) -> tuple[Stream]:
        assert context is not None
        self.streams.all.append(Stream("stream", context))
        return (self._made(self.streams.all[-1]),)

    def _cuStreamSynchronize(self, stream: Stream) -> tuple[()]:
        self.streams.run_until(lambda: not stream.queue)
        return ()

    def _cuStreamDestroy(self, stream: Stream) -> tuple[()]:
        assert not stream.queue, "a stream with work"
        self.streams.all.remove(stream)
        return self._destroyed(stream)

    def _cuEventCreate(self, flags: int) -> tuple[Event]:
        return (self._made(Event("event")),)

    def _cuEventDestroy(self, event: Event) -> tuple[()]:
        return self._destroyed(event)

    def _cuEventRecord(self, event: Event, stream: Stream) -> tuple[()]:
        """CUDA allows it earlier; of the device it would show that a ring's entry is in use."""
        assert event.done, "an event recorded again before it was complete"
        event.record = Record()
        stream.queue.append(event.record)
        self.streams.queued()
        return ()

    def _cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> tuple[()]:
        if event.record is not None:
            stream.queue.append(Wait(event.record))
        return ()

    def _cuEventQuery(self, event: Event) -> tuple[()]:
        """The card goes on a little: who asks again and again is told some day."""
        self.streams.run_until(lambda: event.done, self.streams.random.randrange(1, 20))
        _demand(event.done, CUresult.CUDA_ERROR_NOT_READY)
        return ()

    def _cuEventSynchronize(self, event: Event) -> tuple[()]:
        self.streams.run_until(lambda: event.done)
        return ()

    def _cuEventElapsedTime(self, start: Event, end: Event) -> tuple[float]:
        assert start.record and end.record, "never recorded"
        _demand(start.done and end.done, CUresult.CUDA_ERROR_NOT_READY)
        return (end.record.time - start.record.time,)

    # ---- what was made

    def _made(self, thing: Any) -> Any:
        self.alive[thing.kind] += 1
        return thing

    def _destroyed(self, thing: Thing) -> tuple[()]:
        assert thing not in self._gone, f"{thing.kind}: destroyed twice"
        self._gone.add(thing)
        self.alive[thing.kind] -= 1
        return ()


def _demand(good: bool, status: CUresult) -> None:
    if not good:
        raise Failure(status)
