"""Kernels from a bundle's cubins, and programs as CUDA graphs: captured once, at load."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from strata_runtime.bundle_format import Argument, Call, Manifest, Program
from strata_runtime.bundle_load import Bundle
from strata_runtime.cuda_driver import Driver
from strata_runtime.errors import BundleError, DeviceError

#: More dynamic shared memory than this has to be asked for.
PLAIN_SHARED = 48 << 10
_WORD = np.uint64(8)  # bytes of an address


def target_of(manifest: Manifest, card: str, architecture: tuple[int, int]) -> str:
    """The bundle's target whose cubins run on a card: its own, or an older one of its generation.

    DeviceError where there is none.
    """
    major, minor = architecture
    found = [re.fullmatch(r"sm_(\d+)(\d)", target) for target in manifest.targets]
    mine = [m for m in found if m is not None and int(m[1]) == major]
    fit = [(int(m[2]), m[0]) for m in mine if int(m[2]) <= minor]
    if not fit:
        targets = ", ".join(manifest.targets)
        raise DeviceError(
            f"{card} is sm_{major}{minor}, the bundle is for {targets}; "
            f"add sm_{major}{minor} to the plan's targets and compile again"
        )
    return max(fit)[1]


class Kernels:
    """The entries of a bundle's cubins, in the context that is current."""

    def __init__(
        self, driver: Driver, bundle: Bundle, target: str, dependent: bool = False
    ) -> None:
        """Load every unit; BundleError where one is missing.

        They are launched `dependent` on cards that can (sm_90 and later): kernels there wait for
        each other by themselves.
        """
        self._driver, self.dependent = driver, dependent
        self._libraries: list[Any] = []
        self._kernels: dict[str, Any] = {}
        for unit, record in bundle.manifest.units.items():
            library = self._load(bundle.folder / "kernels" / unit / f"{target}.cubin")
            for name in record.entries:
                self._kernels[name] = driver("cuLibraryGetKernel", library, name.encode())

    def _load(self, path: Path) -> Any:
        try:
            cubin = path.read_bytes()
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
        library = self._driver("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
        self._libraries.append(library)
        return library

    def function(self, call: Call) -> Any:
        """The function of a call in the current context; BundleError where there is none."""
        kernel = self._kernels.get(call.entry)
        if kernel is None:
            raise BundleError(f"kernels: no entry {call.entry}; compile again")
        function = self._driver("cuKernelGetFunction", kernel)
        if call.shared > PLAIN_SHARED:
            attribute = self._driver.api.CUfunction_attribute
            most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver("cuFuncSetAttribute", function, most, call.shared)
        return function

    def close(self) -> None:
        """Unload everything."""
        for library in self._libraries:
            self._driver("cuLibraryUnload", library)


def capture(
    driver: Driver,
    stream: Any,
    program: Program,
    kernels: Kernels,
    address: Callable[[Argument], int],
) -> Any:
    """A program as an executable graph that has been uploaded; a chain of its calls, in order.

    Where the card can, every call but the first is launched while the one before it still runs.
    """
    functions = [kernels.function(call) for call in program.calls]
    mode = driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    driver("cuStreamBeginCapture", stream, mode)
    try:
        for i, (call, function) in enumerate(zip(program.calls, functions, strict=True)):
            _launch(driver, stream, call, function, address, kernels.dependent and i > 0)
    finally:
        graph = driver("cuStreamEndCapture", stream)
    executable = driver("cuGraphInstantiate", graph, 0)
    driver("cuGraphUpload", executable, stream)
    driver("cuGraphDestroy", graph)
    return executable


def _launch(
    driver: Driver,
    stream: Any,
    call: Call,
    function: Any,
    address: Callable[[Argument], int],
    dependent: bool,
) -> None:
    """One kernel; its arguments are the addresses of the call's, in their order.

    A dependent one may be launched while the one before it runs, which it waits for by itself.
    """
    pointers = np.array([address(a) for a in call.args.values()], np.uint64)
    places = np.uint64(pointers.ctypes.data) + np.arange(len(pointers), dtype=np.uint64) * _WORD
    config = driver.api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = call.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = call.threads, 1, 1
    config.sharedMemBytes, config.hStream = call.shared, stream
    if dependent:
        config.attrs, config.numAttrs = [_dependence(driver)], 1
    driver("cuLaunchKernelEx", config, function, places.ctypes.data, 0)


def _dependence(driver: Driver) -> Any:
    attribute, kinds = driver.api.CUlaunchAttribute(), driver.api.CUlaunchAttributeID
    attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute
