"""Drives the scheduler without a device, and records what it queues and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from strata_compile.dataflow.graph import Dataflow, Edge, Reason
from strata_runtime.bundle_format import Shape
from strata_runtime.launch import Launch
from strata_runtime.request import LENGTH, Request
from strata_runtime.schedule import Schedule
from strata_runtime.scheduler import ChunkDone, Drafts, Event, Outcome, Submitted, Verdict, step
from strata_runtime.state import Config, State, initial_state

#: Windows of each slot, so that every context is used again after a reader of its rows.
WINDOWS = 3
#: Prompt chunks of a slot that reads a prompt, likewise.
CHUNKS = 2


#: Why the host acts, by the kind of launch whose completion it hears of.
_CAUSES = {"exec": Reason.VERDICT, "draft": Reason.DRAFTS, "prompt": Reason.CHUNK_DONE}


@dataclass
class _Recorder:
    """The dataflow so far; `cause` is the launch whose completion the host acted upon."""

    state: State
    stages: int
    dataflow: Dataflow = field(default_factory=Dataflow)
    queues: dict[int, list[int]] = field(default_factory=dict)
    running: deque[Launch] = field(default_factory=deque)

    def step(self, event: Event, cause: Launch | None) -> None:
        result = step(self.state, event)
        self.state = result.state
        for launch in result.launches:
            self._queued(launch, cause)

    def _queued(self, launch: Launch, cause: Launch | None) -> None:
        self.dataflow.add(launch)
        queue = self.queues.setdefault(launch.stage, [])
        if queue:
            self._edge(queue[-1], launch, Reason.QUEUE)
        entries = self.state.config.shape.ring_entries
        if len(queue) >= entries:
            self._edge(queue[-entries], launch, Reason.RING_REUSE)
        for waited in launch.waits:
            before = waited == launch.id - 1 and launch.stage > 0
            self._edge(waited, launch, Reason.HANDOFF if before else Reason.HANDOFF_REUSE)
        if cause is not None:
            self._edge(cause.id, launch, _CAUSES[cause.table.kind])
        queue.append(launch.id)
        if launch.stage == self.stages - 1 and launch.table.kind in _CAUSES:
            self.running.append(launch)

    def _edge(self, before: int, launch: Launch, reason: Reason) -> None:
        self.dataflow.order(Edge(before, launch.id, reason))

    def complete(self, launch: Launch) -> None:
        """The launch has left the last stage: its verdict is one token a segment."""
        table = launch.table
        if table.kind == "exec":
            outcomes = tuple(self._outcome(segment.slot) for segment in table.segments)
            self.step(Verdict(table.context, outcomes), launch)
        elif table.kind == "draft":
            drafts = tuple((0,) * segment.depth for segment in table.segments)
            self.step(Drafts(table.context, drafts), launch)
        else:
            self.step(ChunkDone(table.context), launch)

    def _outcome(self, slot: int) -> Outcome:
        ends = self.state.slots[slot].generated + 1 == WINDOWS
        return Outcome(slot, (0,), LENGTH if ends else None)


def record_dataflow(shape: Shape, commits: tuple[bool, ...]) -> Dataflow:
    """What is queued while every slot draws three tokens, and some read prompts of two chunks.

    `commits` says of each stage whether it has state. As many windows are in flight as there may
    be, and drafts as many as there can be. One slot more than there are prompt contexts reads, so
    that each of them is used again.
    Completions come in the order of the last stage's queue, the only one in which they can.
    """
    size = shape.prompt_sizes[0]
    length = min(CHUNKS * size + 1, shape.context - WINDOWS)
    stages, schedule = len(commits), Schedule(shape.groups, drafts=shape.draft_depth)
    config = Config(stages, shape, size, schedule, commits)
    recorder = _Recorder(initial_state(config), stages)
    for number in range(1, shape.slots + 1):
        reads = number <= shape.prompt_contexts + 1
        request = Request(number, (0,) * (max(length, 1) if reads else 1), WINDOWS)
        recorder.step(Submitted(request), None)
    while recorder.running:
        recorder.complete(recorder.running.popleft())
    return recorder.dataflow
