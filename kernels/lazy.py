"""torch, imported at its first use.

The compiler reads declarations only; importing torch takes a second and 200 MB, which a user who
mistyped a plan should not pay for.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING


def _keep_rows_apart() -> None:
    """Ask MKL for products whose rows have the same bits in any company; before it is loaded.

    Measured with torch 2.13: without this, an Intel machine with AVX-512 gives a row other bits in
    a product of 8 rows and in one of 16 or more (AMD's does not); it costs no time there. The
    device's own test at load says where it is not enough.
    """
    cpus = Path("/proc/cpuinfo")
    if not cpus.exists() or "GenuineIntel" in cpus.read_text(errors="replace"):
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


_keep_rows_apart()

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        """Stands for the module; keeps each attribute that was asked for."""

        def __getattr__(self, name: str) -> object:
            value = getattr(importlib.import_module("torch"), name)
            self.__dict__[name] = value
            return value

    torch = _Torch()
