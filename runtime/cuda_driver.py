"""The CUDA driver: its calls with their status checked, and a count of those that make something.

Once the device serves, nothing more may be made: no module, no capture, no graph, no event.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

from strata_runtime.errors import DeviceError

#: Calls that make or load something; while serving there must be none.
MAKING = frozenset(
    {
        "cuEventCreate",
        "cuGraphInstantiate",
        "cuGraphUpload",
        "cuGreenCtxCreate",
        "cuGreenCtxStreamCreate",
        "cuLibraryLoadData",
        "cuStreamBeginCapture",
        "cuStreamCreateWithPriority",
    }
)


class Driver:
    """The driver's functions by name; DeviceError, in one line, for a status that is no success."""

    def __init__(self) -> None:
        """DeviceError where the package, the driver or a card is missing."""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            message = "cuda: the package cuda-bindings is missing; install strata-compile[cuda]"
            raise DeviceError(f"{message}, or use --device cpu") from error
        self.api: Any = driver
        self.made: Counter[str] = Counter()
        self.frozen = False
        try:
            self("cuInit", 0)
            cards = self("cuDeviceGetCount")
        except RuntimeError as error:  # libcuda itself is not there
            raise DeviceError(f"cuda: no driver ({_line(error)}); use --device cpu") from error
        if not cards:
            raise DeviceError("cuda: the driver sees no card; use --device cpu")

    def __call__(self, name: str, *args: Any) -> Any:
        """Call a function; what it returns behind its status, one value or a tuple."""
        if name in MAKING:
            assert not self.frozen, f"{name} while serving"
            self.made[name] += 1
        status, *values = getattr(self.api, name)(*args)
        if int(status):
            raise DeviceError(f"cuda: {name}: {self.reason(status)}")
        return values[0] if len(values) == 1 else tuple(values)

    def fail(self, name: str, status: Any, where: str) -> NoReturn:
        """DeviceError for a status that a caller looked at itself."""
        raise DeviceError(f"cuda: {where}: {name}: {self.reason(status)}")

    def reason(self, status: Any) -> str:
        """A status in words."""
        _, text = self.api.cuGetErrorString(status)
        words = text.decode() if isinstance(text, bytes) else "unknown error"
        return f"{getattr(status, 'name', status)} ({words})"

    def freeze(self) -> None:
        """From now on, whatever makes something is a fault."""
        self.frozen = True


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
