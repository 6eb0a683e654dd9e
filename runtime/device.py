"""What the engine asks of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from strata_runtime.launch import Launch


@dataclass(frozen=True)
class Done:
    """A launch is complete; `error` says why it is not, if it failed.

    It ran for `elapsed_ms` from `start` on, in seconds of the device's own clock.
    """

    launch_id: int
    stage: int
    start: float
    elapsed_ms: float
    error: BaseException | None = None


class Device(Protocol):
    """Loaded once; then launches in, completions out. Queues run in order, one a stage."""

    def submit(self, launch: Launch) -> None:
        """Queue a launch behind those of its stage; returns before it has run."""

    def wait(self) -> Done:
        """The next completion; blocks until there is one."""

    def verdict(self, context: int) -> npt.NDArray[np.int32]:
        """A copy of a window context's verdict words, shape (row limit, 4)."""

    def drafts(self, context: int) -> npt.NDArray[np.int32]:
        """A copy of a window context's draft words, shape (row limit, 1 + 2 · most drafts)."""

    def close(self) -> None:
        """Let what is queued end, and free everything."""
