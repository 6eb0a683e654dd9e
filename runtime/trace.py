"""A trace of launches for Perfetto or chrome://tracing: one line of slices a stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata_runtime.device import Done
from strata_runtime.errors import OptionError
from strata_runtime.launch import Launch

#: The one process of a trace; its threads are the stages.
PROCESS = 1


class Trace:
    """Hears of completed launches, from any device: `Engine(observe=trace.add)`."""

    def __init__(self) -> None:
        """Nothing heard."""
        self._heard: list[tuple[Launch, Done]] = []

    def add(self, launch: Launch, done: Done) -> None:
        """Take a completion down."""
        self._heard.append((launch, done))

    def events(self) -> list[dict[str, Any]]:
        """Trace events: the stages' names, a slice for each launch, an arrow for each wait.

        Times are microseconds since the first launch began. Waits for launches that were not heard
        of, or that are on the same stage, have no arrow.
        """
        zero = min((done.start for _, done in self._heard), default=0.0)
        slices = {launch.id: _slice(launch, done, zero) for launch, done in self._heard}
        events = [*_names(sorted({launch.stage for launch, _ in self._heard})), *slices.values()]
        for launch, _ in self._heard:
            for wait in launch.waits:
                if wait in slices and slices[wait]["tid"] != launch.stage:
                    events += _arrow(wait, launch.id, slices)
        return events

    def text(self) -> str:
        """The trace file: a JSON object."""
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": self.events()}) + "\n"

    def write(self, path: Path) -> None:
        """Write the trace file; OptionError where it cannot be written."""
        try:
            path.write_text(self.text(), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"{path}: cannot be written: {error.strerror}") from error


def _names(stages: list[int]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", 0, {"name": "strata"})
    for stage in stages:
        yield _name("thread_name", stage, {"name": f"stage {stage}"})
        yield _name("thread_sort_index", stage, {"sort_index": stage})


def _name(name: str, stage: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": stage, "args": args}


def _slice(launch: Launch, done: Done, zero: float) -> dict[str, Any]:
    table = launch.table
    args: dict[str, Any] = {
        "launch": launch.id,
        "program": launch.program,
        "context": table.context,
        "slots": [segment.slot for segment in table.segments],
        "rows": len(table.rows),
        "waits": list(launch.waits),
    }
    if done.error is not None:
        args["error"] = f"{type(done.error).__name__}: {done.error}"
    return {
        "ph": "X",
        "name": launch.program,
        "cat": table.kind,
        "pid": PROCESS,
        "tid": launch.stage,
        "ts": (done.start - zero) * 1e6,
        "dur": done.elapsed_ms * 1e3,
        "args": args,
    }


def _arrow(source: int, target: int, slices: dict[int, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """From the middle of a slice, which is surely inside of it, to the beginning of another."""
    begin, end = slices[source], slices[target]
    common = {"name": "wait", "cat": "wait", "id": f"{source}-{target}", "pid": PROCESS}
    middle = begin["ts"] + begin["dur"] / 2
    yield {**common, "ph": "s", "tid": begin["tid"], "ts": middle}
    yield {**common, "ph": "f", "bp": "e", "tid": end["tid"], "ts": end["ts"]}
