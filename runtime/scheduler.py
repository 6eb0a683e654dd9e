"""The scheduler: a pure state machine. Events in, launches out; the state is a value.

A window is queued on all its stages at once; every launch names the launches that it waits for:
the hand-off from the stage before, and the reader of the hand-off rows that it will overwrite.
All stages take launches in the same order, so waits cannot form a cycle. The host acts again at
the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strata_runtime.commits import Queued, late_commits
from strata_runtime.drafters import DEVICE_DRAFTERS
from strata_runtime.evolve import evolve
from strata_runtime.launch import Launch, Tokens
from strata_runtime.measures import Timing
from strata_runtime.request import CANCELLED, Request
from strata_runtime.state import Context, Phase, Slot, State
from strata_runtime.windows import prompt_chunk, window

Timings = tuple[Timing, ...]


@dataclass(frozen=True)
class Submitted:
    """A request arrived; `drafts` may follow its prompt."""

    request: Request
    time: float = 0.0
    drafts: Tokens = ()


@dataclass(frozen=True)
class Cancelled:
    """A request is no longer wanted."""

    request_id: int
    time: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What one slot's segment brought: the tokens that belong to its text, and why it ends.

    Of `drafted` drafts `accepted` held, whether or not the text ended before. `drafts` are proposed
    to follow the tokens.
    """

    slot: int
    tokens: Tokens
    finish: str | None = None
    drafts: Tokens = ()
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Verdict:
    """A window has left the last stage. `timings` are of launches that are complete by now."""

    context: int
    outcomes: tuple[Outcome, ...]
    time: float = 0.0
    timings: Timings = ()


@dataclass(frozen=True)
class Drafts:
    """A draft program has ended: what it proposes for each segment of its window.

    Where it has `failed`, the slots go on without drafts.
    """

    context: int
    drafts: tuple[Tokens, ...]
    time: float = 0.0
    failed: bool = False
    timings: Timings = ()


@dataclass(frozen=True)
class ChunkDone:
    """A prompt chunk has left the last stage."""

    context: int
    time: float = 0.0
    timings: Timings = ()


Event = Submitted | Cancelled | Verdict | Drafts | ChunkDone


@dataclass(frozen=True)
class Finished:
    """A request has ended."""

    request_id: int
    reason: str


@dataclass(frozen=True)
class Step:
    """What an event led to."""

    state: State
    launches: tuple[Launch, ...] = ()
    finished: tuple[Finished, ...] = field(default=())


def step(state: State, event: Event) -> Step:
    """Take an event in, and queue everything that may now be queued."""
    finished: tuple[Finished, ...] = ()
    commits: tuple[Launch, ...] = ()
    match event:
        case Submitted(request, _, drafts):
            state = evolve(state, waiting=(*state.waiting, (request, drafts)))
        case Cancelled(request_id):
            state, finished = _cancel(state, request_id)
        case Verdict():
            state, commits = _commits(_measured(state, event.timings), event)
            state, finished = _verdict(state, event)
        case Drafts():
            state = _drafts(_measured(state, event.timings), event)
        case ChunkDone():
            state = _chunk_done(_measured(state, event.timings), event)
    state, launches = _queue(_admit(state))
    return Step(state, (*commits, *launches), finished)


def _measured(state: State, timings: Timings) -> State:
    costs = state.costs
    for timing in timings:
        costs = costs.measured(timing, state.next_id)
    return evolve(state, costs=costs)


def _cancel(state: State, request_id: int) -> tuple[State, tuple[Finished, ...]]:
    ended = (Finished(request_id, CANCELLED),)
    waiting = tuple(w for w in state.waiting if w[0].id != request_id)
    if len(waiting) < len(state.waiting):
        return evolve(state, waiting=waiting), ended
    for i, slot in enumerate(state.slots):
        if slot.request is not None and slot.request.id == request_id:
            return _end(state, i), ended
    return state, ()


def _end(state: State, index: int) -> State:
    """End a slot's text: free at once, or once what it has in flight has left the last stage."""
    slot = evolve(state.slots[index], request=None, phase=Phase.DRAINING)
    return _settle(state.with_slot(index, slot), index)


def _settle(state: State, index: int) -> State:
    slot = state.slots[index]
    if slot.phase is Phase.DRAINING and not slot.in_flight:
        return state.with_slot(index, evolve(slot, phase=Phase.FREE))
    return state


def _commits(state: State, event: Verdict) -> Queued:
    """Make permanent what the text keeps; nothing more of a text that has been cancelled."""
    table = state.contexts[event.context].table
    assert table is not None
    return late_commits(state, table, {o.slot: len(o.tokens) for o in event.outcomes if o.tokens})


def _verdict(state: State, event: Verdict) -> tuple[State, tuple[Finished, ...]]:
    """The context is free, or, where a chain is queued behind the window, at the chain's end."""
    finished: list[Finished] = []
    chain = state.contexts[event.context].chain
    if not chain:
        state = state.with_context(event.context, Context())
    for outcome in event.outcomes:
        slot = state.slots[outcome.slot]
        slot = evolve(slot, in_flight=slot.in_flight - (not chain))
        state = state.with_slot(outcome.slot, slot)
        if slot.request is None:
            state = _settle(state, outcome.slot)
        elif outcome.finish is not None:
            finished.append(Finished(slot.request.id, outcome.finish))
            state = _end(_judged(state, outcome), outcome.slot)
        else:
            state = _advanced(_judged(state, outcome), outcome, bool(chain))
    return state, tuple(finished)


def _judged(state: State, outcome: Outcome) -> State:
    """Remember how many drafts held."""
    slot, seen = state.slots[outcome.slot], (outcome.drafted, outcome.accepted)
    state = state.with_slot(outcome.slot, evolve(slot, holds=slot.holds.seen(*seen)))
    return evolve(state, holds=state.holds.seen(*seen))


def _advanced(state: State, outcome: Outcome, chain: bool) -> State:
    """The slot's real token was row 0; accepted drafts follow it; the last token comes next."""
    slot = state.slots[outcome.slot]
    slot = evolve(
        slot,
        phase=Phase.DRAFTING if chain else Phase.READY,
        length=slot.length + len(outcome.tokens),
        token=outcome.tokens[-1],
        generated=slot.generated + len(outcome.tokens),
        drafts=(),
    )
    state = state.with_slot(outcome.slot, slot)
    if chain or state.config.shape.drafter in DEVICE_DRAFTERS:
        return state
    return _proposed(state, outcome.slot, state.config.shape.draft_depth, outcome.drafts)


def _proposed(state: State, index: int, asked: int, drafts: Tokens) -> State:
    """The slot's drafts for its next window, and how many of those that were asked for came."""
    slot, seen = state.slots[index], (asked, len(drafts))
    slot = evolve(slot, drafts=drafts, offers=slot.offers.seen(*seen))
    return evolve(state.with_slot(index, slot), offers=state.offers.seen(*seen))


def _drafts(state: State, event: Drafts) -> State:
    """The slots of the window may go on, each with its drafts; those that ended have drained."""
    table = state.contexts[event.context].table
    assert table is not None
    state = state.with_context(event.context, Context())
    for segment, drafts in zip(table.segments, event.drafts, strict=True):
        slot = state.slots[segment.slot]
        slot = evolve(slot, in_flight=slot.in_flight - 1)
        if slot.phase is Phase.DRAFTING:
            slot = evolve(slot, phase=Phase.READY, drafting=slot.drafting and not event.failed)
            state = state.with_slot(segment.slot, slot)
            if not event.failed:
                state = _proposed(state, segment.slot, segment.depth, drafts)
        else:
            state = _settle(state.with_slot(segment.slot, slot), segment.slot)
    return state


def _chunk_done(state: State, event: ChunkDone) -> State:
    (index,) = state.contexts[event.context].slots
    slot = state.slots[index]
    state = state.with_slot(index, evolve(slot, in_flight=slot.in_flight - 1))
    return _settle(state.with_context(event.context, Context()), index)


def _admit(state: State) -> State:
    """Give free slots to waiting requests, in the order of arrival."""
    for index, slot in enumerate(state.slots):
        if slot.phase is Phase.FREE and state.waiting:
            (request, drafts), *rest = state.waiting
            first = evolve(
                Slot(epoch=slot.epoch + 1, request=request, served=slot.served, drafts=drafts),
                phase=Phase.PROMPT if len(request.prompt) > 1 else Phase.READY,
            )
            state = evolve(state.with_slot(index, first), waiting=tuple(rest))
    return state


def _queue(state: State) -> tuple[State, tuple[Launch, ...]]:
    """Windows first, then at most one prompt chunk, until neither is possible."""
    launches: list[Launch] = []
    while True:
        state, more = window(state)
        if not more:
            state, more = prompt_chunk(state)
        if not more:
            return state, tuple(launches)
        launches += more
