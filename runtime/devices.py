"""Which device a command runs on."""

from __future__ import annotations

from strata_runtime.bundle_load import Bundle
from strata_runtime.cuda_driver import Driver
from strata_runtime.device import Device
from strata_runtime.errors import DeviceError
from strata_runtime.gguf_file import GgufFile

DEVICES = ("cpu", "cuda")


def device_for(bundle: Bundle, asked: str | None) -> str:
    """The device that was asked for; else cuda for a bundle that has GPU targets, if there is one.

    Where there is a card, a bundle that does not fit it is an error: nothing falls back silently.
    """
    if asked is not None:
        return asked
    if "cuda" not in bundle.manifest.memory:
        return "cpu"
    try:
        Driver()
    except DeviceError:
        return "cpu"
    return "cuda"


def open_device(
    name: str, bundle: Bundle, gguf: GgufFile, draft: GgufFile | None, threads: int | None
) -> Device:
    """Load a bundle onto a device; `threads` is for the CPU's. DeviceError where it cannot be."""
    if name == "cuda":
        if "cuda" not in bundle.manifest.memory:
            found = ", ".join(bundle.manifest.targets)
            raise DeviceError(
                f"{bundle.folder}: compiled for {found}, not for a GPU; add its target"
            )
        from strata_runtime.cuda_device import CudaDevice

        return CudaDevice(bundle, gguf, draft)
    from strata_runtime.cpu_device import CpuDevice

    return CpuDevice(bundle, gguf, threads, draft)
