"""Every program of every stage: exec and commit for 1..8 rows, commit_row, draft chains, the prompt
sizes, copy.

A stage that has no state has no commits: they would have no kernel call.
"""

from __future__ import annotations

from strata_compile.lower.calls import LoweredCall, LoweredProgram, Named, Programs, Scratch, call
from strata_compile.lower.copies import copy_of_cells
from strata_compile.lower.drafts import draft_cells, draft_chain
from strata_compile.lower.facts import RING_ENTRIES, Facts
from strata_compile.lower.fuse import fuse
from strata_compile.lower.place import Place
from strata_compile.lower.prune import prune
from strata_compile.lower.rules import lower_commit, lower_copy, lower_graph
from strata_compile.stages.partition import Stage, StagedModel
from strata_kernels import (
    handoff_read,
    handoff_write,
    logits_hash,
    sample,
    store_tokens,
    take_table,
    verdict,
)
from strata_kernels.table import ROW_LIMIT, Kind


def lower(staged: StagedModel, facts: Facts) -> Programs:
    """The programs of all stages; those without a kernel call beyond the table's are left out."""
    wanted = _wanted(facts)
    programs = (
        _program(staged, stage, kind, rows, facts)
        for stage in staged.stages
        for kind, rows in wanted
    )
    return Programs(tuple(p for p in programs if len(p.calls) > 1))


def _wanted(facts: Facts) -> list[tuple[Kind, int]]:
    """(kind, rows) of a stage's programs: how many does not depend on slots, groups or rings."""
    rows = range(1, ROW_LIMIT + 1)
    return [
        *((Kind.EXEC, n) for n in rows),
        *((Kind.COMMIT, n) for n in rows),
        (Kind.COMMIT_ROW, 1),
        *((Kind.DRAFT, n) for n in range(1, facts.draft_depth + 1)),
        *((Kind.PROMPT, n) for n in facts.prompt_sizes),
        (Kind.COPY, facts.prompt_sizes[-1]),
    ]


#: Kinds whose table has as many rows as a window may have, whatever is in their names: the steps
#: of a chain, or the one row of each slot.
_OF_ANY_WINDOW = frozenset({Kind.COMMIT_ROW, Kind.DRAFT})


def _program(
    staged: StagedModel, stage: Stage, kind: Kind, rows: int, facts: Facts
) -> LoweredProgram:
    place = Place(stage.index, kind, ROW_LIMIT if kind in _OF_ANY_WINDOW else rows, facts)
    calls = [_take_table(place), *_body(staged, stage, place, rows)]
    return LoweredProgram(stage.index, kind, rows, fuse(prune(calls)))


def _body(staged: StagedModel, stage: Stage, place: Place, rows: int) -> list[LoweredCall]:
    """What a program does once it has its table; `rows` is the number in its name."""
    drafter = staged.drafter if stage.ends else None
    match place.kind:
        case Kind.EXEC | Kind.PROMPT:
            return _forward(staged, stage, place)
        case Kind.COMMIT | Kind.COMMIT_ROW:
            return lower_commit(place, staged.nodes(stage))
        case Kind.DRAFT:
            return draft_chain(place, drafter, steps=rows) if drafter is not None else []
        case Kind.COPY:
            copies = lower_copy(place, (*staged.nodes(stage), *(drafter or ())))
            tokens = copy_of_cells(place, _tokens(place), "i32", 1, 1)
            return [*copies, tokens] if stage.ends else copies


def _take_table(place: Place) -> LoweredCall:
    params = take_table.Params(place.rows, RING_ENTRIES, place.facts.ring_stride)
    ring, counter = place.named("ring", "ring"), place.named("counter", "tables")
    return call(take_table.SPEC, params, ring=ring, counter=counter, table=place.table)


def _forward(staged: StagedModel, stage: Stage, place: Place) -> list[LoweredCall]:
    """Rows through a stage's layers, and on to the next stage or to the verdict."""
    calls, given = [], dict[str, Scratch]()
    if not stage.embeds:
        incoming = staged.incoming(stage)
        given[incoming] = Scratch(incoming)
        calls.append(_handoff_read(place, given[incoming]))
    nodes = list(staged.nodes(stage))
    calls += lower_graph(place, nodes, staged.graph, given)
    last = Scratch(nodes[-1].name)
    if not stage.ends:
        return [*calls, _handoff_write(place, last)]
    calls.append(_store_tokens(place))
    if staged.drafter is not None:
        (hidden,) = staged.graph.inputs(last.name)
        calls += draft_cells(place, staged.drafter, Scratch(hidden))
    if place.kind is Kind.EXEC:
        calls += _verdict(place, last)
    return calls


def _handoff(place: Place, stage: int) -> Named:
    """The rows that a stage leaves for the one after it."""
    return Named(stage, "handoff", "contexts", place.facts.handoff_rows)


def _handoff_read(place: Place, out: Scratch) -> LoweredCall:
    params = handoff_read.Params(place.rows, place.facts.width)
    handoff = _handoff(place, place.stage - 1)
    return call(handoff_read.SPEC, params, table=place.table, handoff=handoff, out=out)


def _handoff_write(place: Place, x: Scratch) -> LoweredCall:
    params = handoff_read.Params(place.rows, place.facts.width)
    handoff = _handoff(place, place.stage)
    return call(handoff_write.SPEC, params, table=place.table, x=x, handoff=handoff)


def _tokens(place: Place) -> Named:
    return place.cells("tokens")


def _store_tokens(place: Place) -> LoweredCall:
    params = store_tokens.Params(place.rows, place.facts.chunks)
    return call(store_tokens.SPEC, params, table=place.table, token_cells=_tokens(place))


def _verdict(place: Place, logits: Scratch) -> list[LoweredCall]:
    """Hash, sampling and verdict of a window, on the device of its last stage."""
    facts, rows, table = place.facts, place.rows, place.table
    hashes, draws = Scratch("hashes"), Scratch("draws")
    hashing = logits_hash.Params(rows, facts.vocab)
    sampling = sample.Params(rows, facts.vocab, facts.chunks)
    side = {
        "token_cells": _tokens(place),
        "bias": place.named("bias", "contexts", facts.slots),
        "mask": place.named("mask", "contexts", facts.groups * ROW_LIMIT),
    }
    words = place.named("verdict", "answers", facts.groups)
    judge = verdict.Params(rows, hashing.parts)
    return [
        call(logits_hash.SPEC, hashing, table=table, logits=logits, hashes=hashes),
        call(sample.SPEC, sampling, table=table, logits=logits, **side, draws=draws),
        call(verdict.SPEC, judge, table=table, draws=draws, hashes=hashes, verdict=words),
    ]
