"""Replays whole programs of a bundle with its cubins on the GPU, kernel by kernel, no graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from emulated_bundle import TemplateBundle
from strata_kernels.render import Entry
from strata_runtime.bundle_load import Bundle


def architecture() -> str:
    """The GPU's `sm_` name."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def checked(result: tuple[Any, ...]) -> Any:
    """What a driver call returns behind its status, which must be success."""
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None


class GpuBundle(TemplateBundle):
    """The bundle's cubins for this GPU, launched through the driver."""

    device = "cuda"

    def __init__(self, bundle: Bundle, programs: Sequence[str]) -> None:
        """Load every unit's cubin."""
        from cuda.bindings import driver

        super().__init__(bundle, programs)
        self._driver = driver
        self._functions = {}
        for unit, record in bundle.manifest.units.items():
            path = bundle.folder / "kernels" / unit / f"{architecture()}.cubin"
            module = checked(driver.cuModuleLoadData(path.read_bytes()))
            for name in record.entries:
                self._functions[name] = checked(driver.cuModuleGetFunction(module, name.encode()))

    def launch(self, entry: Entry, bound: dict[str, torch.Tensor]) -> None:
        """Launch one kernel, and wait for it."""
        args = entry.spec.args(entry.params)
        geometry = entry.spec.geometry(entry.params)
        pointers = np.array([bound[a.name].data_ptr() for a in args], np.uint64)
        places = pointers.ctypes.data + 8 * np.arange(len(pointers), dtype=np.uint64)
        launch = self._driver.cuLaunchKernel(
            *(self._functions[entry.name], *geometry.grid, geometry.threads, 1, 1),
            *(geometry.shared, 0, places.astype(np.uint64).ctypes.data, 0),
        )
        checked(launch)
        torch.cuda.synchronize()
