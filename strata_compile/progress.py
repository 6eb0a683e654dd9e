"""The passes as they run: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows which pass runs; a context manager, so that the terminal is left clean."""

    def __init__(self, passes: Sequence[str]) -> None:
        """`passes` in the order in which they will run."""
        self._passes = list(passes)
        console = Console(stderr=True)
        columns = (TextColumn("{task.description:9}"), BarColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(self._passes[0], total=len(self._passes))

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def done(self, name: str, seconds: float) -> None:
        """A pass has run."""
        rest = self._passes[self._passes.index(name) + 1 :]
        self._bar.update(self._task, advance=1, description=rest[0] if rest else name)
