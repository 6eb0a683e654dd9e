"""The one door that every pass goes through: timed, verified, dumped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

from strata_runtime.errors import OptionError

P = ParamSpec("P")
T = TypeVar("T")


@runtime_checkable
class Verified(Protocol):
    """A result that knows its own rules."""

    def verify(self) -> None:
        """Raise AssertionError where a rule is broken."""


@runtime_checkable
class Described(Protocol):
    """A result that can be dumped as text."""

    def describe(self) -> str:
        """The text."""


@runtime_checkable
class Drawn(Protocol):
    """A result that can be dumped as a graph."""

    def dot(self) -> str:
        """The graph in Graphviz' language."""


class Stopped(Exception):
    """The pass that `--until` names has run."""


@dataclass
class PassRunner:
    """Runs passes; `dump` takes numbered text and dot files, `report` hears of each pass."""

    dump: Path | None = None
    until: str | None = None
    report: Callable[[str, float], None] = lambda name, seconds: None
    seconds: dict[str, float] = field(default_factory=dict)

    def run_pass(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a pass and check its result; Stopped after the pass that `until` names."""
        start = time.perf_counter()
        result = fn(*args, **kwargs)
        self._write(name, result)  # first: what is not legal is what one wants to see
        if isinstance(result, Verified):
            result.verify()
        self.seconds[name] = time.perf_counter() - start
        self.report(name, self.seconds[name])
        if name == self.until:
            raise Stopped(name)
        return result

    def _write(self, name: str, result: object) -> None:
        if self.dump is None:
            return
        stem = f"{(len(self.seconds) + 1) * 10:02d}_{name}"
        try:
            self.dump.mkdir(parents=True, exist_ok=True)
            if isinstance(result, Described):
                text = result.describe() + "\n"
                (self.dump / f"{stem}.txt").write_text(text, encoding="utf-8")
            if isinstance(result, Drawn):
                (self.dump / f"{stem}.dot").write_text(result.dot(), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"dumps: {self.dump}: {error.strerror}") from error
