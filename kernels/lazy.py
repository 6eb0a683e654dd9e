"""torch, imported at its first use.

The compiler reads declarations only; importing torch takes a second and 200 MB, which a user who
mistyped a plan should not pay for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
