"""Manifests and times for the simulated device, and launches to queue on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from strata_runtime.bundle_format import (
    FORMAT_VERSION,
    Layout,
    Manifest,
    ModelRecord,
    Shape,
    StageRecord,
)
from strata_runtime.clock import ClockDevice
from strata_runtime.device import Done
from strata_runtime.launch import Launch, Row, Sampling, Segment, Table
from strata_runtime.times import Times, parse_times

VOCAB, ROW_LIMIT = 1000, 8
#: Rows cost little, as on most cards; a draft step costs 0.7 ms.
EXEC = {"1": 10, "2": 11, "3": 12, "4": 13, "6": 16, "8": 19}
DRAFT = {"1": 1.7, "3": 3.1}


def make_times(**keys: Any) -> Times:
    """Times as a file with these keys has them; exec is EXEC where it is not given."""
    return parse_times(json.dumps({"exec": EXEC, **keys}))


def make_manifest(
    stages: int, slots: int = 1, groups: int = 1, drafter: str = "none", depth: int = 0
) -> Manifest:
    """What the engine and the clock read of a manifest; it has no programs."""
    shape = Shape(
        slots, groups, 1 << 16, ROW_LIMIT, (32, 128), 2, 100.0, 64, drafter, draft_depth=depth
    )
    return Manifest(
        format=FORMAT_VERSION,
        compiler="0",
        plan={},
        model=ModelRecord("m", "m", "0", 0, False, "m", "llama", stages, VOCAB, shape.context),
        draft=None,
        targets=("cpu",),
        units={},
        nvrtc={},
        prompt_exact={},
        shape=shape,
        table=Layout((), (), (), (), (), ROW_LIMIT),
        partition="none",
        stages=tuple(StageRecord(None, i, i, ()) for i in range(stages)),
        memory={},
        files={},
    )


def make_table(
    kind: str,
    position: int = 0,
    tokens: Sequence[int] = (0,),
    stream: int = 0,
    depth: int = 0,
    context: int = 0,
) -> Table:
    """One segment: tokens of slot 0 from a position on; `depth` drafts are wanted."""
    rows = tuple(
        Row(0, position + i, token, 0, i, i, 0, 0, sampling=Sampling(seed=stream))
        for i, token in enumerate(tokens)
    )
    return Table(kind, context, rows, (Segment(0, 1, 0, len(rows), depth),))


class Queue:
    """Queues launches on a clock, under ids from 1 on, and hears of their completions."""

    def __init__(self, device: ClockDevice) -> None:
        self.device, self.launches = device, list[Launch]()

    def put(self, stage: int, program: str, *waits: int, table: Table | None = None) -> int:
        """Queue a program; its id."""
        number = len(self.launches) + 1
        table = table or make_table(program.split(".")[0])
        self.launches.append(Launch(number, stage, program, table, waits))
        self.device.submit(self.launches[-1])
        return number

    def take(self, count: int) -> list[tuple[int, float, float]]:
        """The next completions: id, start and end in ms."""
        return [_times(self.device.wait()) for _ in range(count)]


def _times(done: Done) -> tuple[int, float, float]:
    start = round(done.start * 1e3, 9)
    return done.launch_id, start, round(start + done.elapsed_ms, 9)
