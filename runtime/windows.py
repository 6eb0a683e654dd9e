"""What goes into the next window or prompt chunk, and its launches on all stages."""

from __future__ import annotations

from dataclasses import replace

from strata_runtime.launch import Launch, Row, Segment, Table
from strata_runtime.request import Request
from strata_runtime.state import Context, Phase, Slot, State

Queued = tuple[State, tuple[Launch, ...]]

#: Drafters that are programs; others answer from the host.
DEVICE_DRAFTERS = frozenset({"mtp"})


def window(state: State) -> Queued:
    """The next window, if a context is free and a slot is ready; else no launches.

    Live slots are spread over the windows that may be in flight, those served longest ago first.
    Each gets a row for its real token, then the rows that are left are shared out among drafts.
    """
    shape = state.config.shape
    ready = [i for i, s in enumerate(state.slots) if s.phase is Phase.READY]
    free = [i for i in range(shape.groups) if not state.contexts[i].slots]
    if not ready or not free:
        return state, ()
    share = min(-(-state.decoding // shape.groups), shape.row_limit)
    oldest = sorted(ready, key=lambda i: (state.slots[i].served, i))[:share]
    taken, context = tuple(sorted(oldest)), free[0]
    rows: list[Row] = []
    segments: list[Segment] = []
    for slot, drafts in zip(taken, _shared_out(state, taken), strict=True):
        first = len(rows)
        rows += _segment_rows(state, slot, drafts, first, context * shape.row_limit)
        depth = _depth(state, slot) if shape.drafter in DEVICE_DRAFTERS else 0
        segments.append(Segment(slot, state.slots[slot].epoch, first, 1 + drafts, depth))
    for slot in taken:
        s = state.slots[slot]
        s = replace(s, phase=Phase.WINDOW, in_flight=s.in_flight + 1, served=state.next_id)
        state = state.with_slot(slot, s)
    table = Table("exec", context, tuple(rows), tuple(segments))
    state, launches = _launch(state, len(rows), table, taken)
    return _chain(state, table, launches)


def _chain(state: State, table: Table, launches: tuple[Launch, ...]) -> Queued:
    """The window's launches, and right behind the last stage's its draft program, if any.

    The chain reads the verdict on the device, so that nobody waits for the host in between.
    """
    steps = max(segment.depth for segment in table.segments)
    if not steps:
        return state, launches
    number, context = state.next_id, state.contexts[table.context]
    chain = Launch(number, launches[-1].stage, f"draft.r{steps}", replace(table, kind="draft"))
    state = replace(state, next_id=number + 1)
    state = state.with_context(table.context, replace(context, chain=number))
    return state, (*launches, chain)


def _depth(state: State, index: int) -> int:
    """Drafts that are of use behind a window that accepts none: a window later fewer may be."""
    shape, slot = state.config.shape, state.slots[index]
    room = shape.context - 2 - slot.length
    left = _request(slot).max_tokens - slot.generated - 2
    return max(0, min(shape.draft_depth, room, left))


def _shared_out(state: State, taken: tuple[int, ...]) -> list[int]:
    """How many drafts each slot's segment gets: one each in turn while rows are left.

    A first draft is worth more than a second. None is worth anything behind the last token that
    the request may have, and none stands at or past `context`.
    """
    shape = state.config.shape
    left, granted = shape.row_limit - len(taken), [0] * len(taken)
    most = [_drafts_of_use(state, slot) for slot in taken]
    for depth in range(1, shape.row_limit):
        for i, wanted in enumerate(most):
            if wanted >= depth and left:
                granted[i], left = depth, left - 1
    return granted


def _drafts_of_use(state: State, index: int) -> int:
    slot = state.slots[index]
    room = state.config.shape.context - 1 - slot.length
    return min(len(slot.drafts), room, _request(slot).max_tokens - slot.generated - 1)


def _segment_rows(state: State, index: int, drafts: int, first: int, handoff: int) -> list[Row]:
    """A slot's real token and its drafts, at the positions behind its committed length."""
    slot = state.slots[index]
    rows = [_row(state, index, slot.length, first, 0, handoff + first)]
    for i, token in enumerate(slot.drafts[:drafts], 1):
        row = replace(rows[0], position=slot.length + i, token=token, index=i)
        rows.append(replace(row, handoff_row=handoff + first + i))
    return rows


def prompt_chunk(state: State) -> Queued:
    """The next chunk of the oldest prompt that is not queued, if a context is free.

    The last prompt token is left: it is row 0 of the slot's first window.
    """
    shape = state.config.shape
    reading = [i for i, s in enumerate(state.slots) if s.phase is Phase.PROMPT]
    free = [i for i in range(shape.groups, len(state.contexts)) if not state.contexts[i].slots]
    if not reading or not free:
        return state, ()
    index, context = min(reading, key=lambda i: _arrival(state.slots[i])), free[0]
    slot = state.slots[index]
    remaining = len(_request(slot).prompt) - 1 - slot.length
    size = _prompt_size(state, remaining)
    count = min(size, remaining, state.config.chunk_rows or remaining)
    first = shape.groups * shape.row_limit + (context - shape.groups) * shape.prompt_sizes[-1]
    rows = tuple(_row(state, index, slot.length + i, 0, i, first + i) for i in range(count))
    table = Table("prompt", context, rows, (Segment(index, slot.epoch, 0, count),))
    slot = replace(
        slot,
        phase=Phase.PROMPT if count < remaining else Phase.READY,
        length=slot.length + count,
        in_flight=slot.in_flight + 1,
    )
    return _launch(state.with_slot(index, slot), size, table, (index,))


def _request(slot: Slot) -> Request:
    assert slot.request is not None
    return slot.request


def _arrival(slot: Slot) -> int:
    return _request(slot).id


def _row(state: State, index: int, position: int, first: int, lane: int, handoff: int) -> Row:
    """A row of a slot: its prompt's token where there is one, else the token drawn last."""
    slot = state.slots[index]
    request = _request(slot)
    token = request.prompt[position] if position < len(request.prompt) else slot.token
    return Row(
        index, position, token, first, lane, handoff, index, index, sampling=request.sampling
    )


def _prompt_size(state: State, remaining: int) -> int:
    """The largest prompt program that is full, and short enough for the slots that decode."""
    sizes = state.config.shape.prompt_sizes
    full = [n for n in sizes if n <= remaining] or [sizes[0]]
    if state.decoding:
        budget = state.config.shape.max_gap_ms / state.config.shape.prompt_contexts
        full = [n for n in full if _estimate(state, n) <= budget] or [sizes[0]]
    return full[-1]


def _estimate(state: State, rows: int) -> float:
    """Milliseconds of a prompt program: as measured, or in proportion to the nearest below."""
    below = [(n, ms) for n, ms in state.costs if n <= rows]
    if not below:
        return float("inf")
    n, ms = below[-1]
    return ms * rows / n


def _launch(state: State, rows: int, table: Table, slots: tuple[int, ...]) -> Queued:
    """One launch a stage. It waits for the stage before, and for the reader of what it rewrites."""
    readers, first = state.readers[table.context], state.next_id
    stages = state.config.stages
    launches = []
    for stage in range(stages):
        waits = [first + stage - 1] if stage else []
        if stage < stages - 1 and readers[stage]:
            waits.append(readers[stage])
        program = f"{table.kind}.r{rows}"
        launches.append(Launch(first + stage, stage, program, table, tuple(waits)))
    all_readers = list(state.readers)
    all_readers[table.context] = tuple(first + stage for stage in range(1, stages))
    state = replace(state, readers=tuple(all_readers), next_id=first + stages)
    context = Context(slots, first + stages - 1, rows)
    return state.with_context(table.context, context), tuple(launches)
