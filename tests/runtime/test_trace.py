"""Traces: slices, names and arrows as the trace event format has them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clock_case import make_manifest, make_table, make_times
from strata_runtime.clock import ClockDevice
from strata_runtime.device import Done
from strata_runtime.engine import Engine
from strata_runtime.errors import OptionError
from strata_runtime.launch import Launch
from strata_runtime.request import Request
from strata_runtime.trace import Trace


def by_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def test_two_launches_by_hand() -> None:
    """A device's clock may stand anywhere when the first launch begins."""
    trace = Trace()
    table = make_table("exec", 3, (1, 2), context=4)
    trace.add(Launch(1, 0, "exec.r2", table), Done(1, 0, 100.0, 2.0))
    trace.add(Launch(2, 1, "exec.r2", table, (1,)), Done(2, 1, 100.0025, 3.5, OSError("gone")))
    events = trace.events()
    assert [(e["name"], e["tid"], e["args"]) for e in by_phase(events, "M")] == [
        ("process_name", 0, {"name": "strata"}),
        ("thread_name", 0, {"name": "stage 0"}),
        ("thread_sort_index", 0, {"sort_index": 0}),
        ("thread_name", 1, {"name": "stage 1"}),
        ("thread_sort_index", 1, {"sort_index": 1}),
    ]
    first, second = by_phase(events, "X")
    assert (first["name"], first["cat"], first["tid"]) == ("exec.r2", "exec", 0)
    assert (first["ts"], first["dur"]) == (0.0, 2000.0)
    assert (second["ts"], second["dur"]) == (pytest.approx(2500.0), 3500.0)
    common = {"program": "exec.r2", "context": 4, "slots": [0], "rows": 2}
    assert first["args"] == {"launch": 1, **common, "waits": []}
    assert second["args"] == {"launch": 2, **common, "waits": [1], "error": "OSError: gone"}
    ((begin,), (end,)) = by_phase(events, "s"), by_phase(events, "f")
    assert (begin["id"], begin["tid"], begin["ts"]) == (end["id"], 0, 1000.0)
    assert (end["tid"], end["ts"], end["bp"]) == (1, second["ts"], "e")


def test_nothing_heard() -> None:
    assert json.loads(Trace().text())["traceEvents"] == Trace().events()


def test_a_run_of_the_engine(tmp_path: Path) -> None:
    """Every launch is a slice; slices of a stage do not overlap; arrows go from stage to stage."""
    trace = Trace()
    manifest = make_manifest(3, 2, 2, "mtp", 3)
    times = make_times(draft={"1": 2}, prompt={"32": 30}, acceptance=0.7)
    engine = Engine(manifest, ClockDevice(manifest, times), observe=trace.add)
    for stream in range(3):
        engine.submit(Request(0, tuple(range(40 + stream)), 30))
    list(engine.updates())
    trace.write(tmp_path / "trace.json")
    file = json.loads((tmp_path / "trace.json").read_text())
    events = file["traceEvents"]
    slices = {e["args"]["launch"]: e for e in by_phase(events, "X")}
    assert sorted(slices) == [*range(1, len(slices) + 1)]
    assert {e["cat"] for e in slices.values()} >= {"exec", "draft", "prompt"}
    for stage in range(3):
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices.values() if e["tid"] == stage)
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(own))
    begins, ends = ({e["id"]: e for e in by_phase(events, phase)} for phase in "sf")
    assert begins.keys() == ends.keys() and len(begins) > 100
    for name, begin in begins.items():
        source, target = (slices[int(part)] for part in name.split("-"))
        assert source["tid"] == begin["tid"] != ends[name]["tid"] == target["tid"]
        assert source["ts"] <= begin["ts"] <= source["ts"] + source["dur"] <= target["ts"] + 1e-3


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be written: No such file"):
        Trace().write(tmp_path / "no" / "trace.json")
