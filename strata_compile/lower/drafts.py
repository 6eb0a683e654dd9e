"""The drafter's part of programs: its cells in exec and prompt, its chain in draft.

exec and prompt fill in the cell before each of their rows, so that the cells of accepted rows are
there when the verdict is: only the one behind the last accepted row is left, and the first step of
a chain (or the next window's row 0) fills that in. There is nothing to catch up, so no draft(0).
"""

from __future__ import annotations

from dataclasses import replace

from strata_compile.lower.calls import LoweredCall, Scratch, call
from strata_compile.lower.place import Place
from strata_compile.lower.rules import hidden_cells, lower_graph
from strata_compile.model.graph import ModelGraph
from strata_compile.model.nextn import HIDDEN, LOGITS, OUTPUT
from strata_kernels import draft_back, draft_first, draft_pick, hidden_store


def draft_cells(place: Place, drafter: ModelGraph, hidden: Scratch) -> list[LoweredCall]:
    """Store the trunk's hidden states, and lower the whole drafter for the cells before the rows.

    What is not needed for cells (attention, feed-forward, head) falls to pruning.
    """
    facts, table = place.facts, place.table
    params = hidden_store.Params(place.rows, facts.width, facts.chunks)
    back = Scratch("draft.table")
    own = replace(place, own_table=back)
    return [
        call(hidden_store.SPEC, params, table=table, x=hidden, hidden_cells=hidden_cells(place)),
        call(draft_back.SPEC, draft_back.Params(place.rows), table=table, out=back),
        *lower_graph(own, drafter, drafter, {}),
    ]


def draft_chain(place: Place, drafter: ModelGraph, steps: int) -> list[LoweredCall]:
    """`steps` drafts for each segment: the first from the verdict, each from the one before."""
    facts, vocab = place.facts, drafter.info.vocab
    verdict = place.named("verdict", "answers", facts.groups)
    drafts = place.named("drafts", "answers", facts.groups)
    table = Scratch("table.1")
    first = draft_first.Params(place.rows)
    calls = [
        call(draft_first.SPEC, first, table=place.table, verdict=verdict, drafts=drafts, out=table)
    ]
    given: dict[str, Scratch] = {}
    for step in range(1, steps + 1):
        own = replace(place, own_table=table, prefix=f"{step}.")
        calls += lower_graph(own, drafter, drafter, given)
        pick = draft_pick.Params(place.rows, vocab, step, facts.min_p, facts.context)
        after = Scratch(f"table.{step + 1}")
        logits = own.value(LOGITS)
        calls.append(
            call(draft_pick.SPEC, pick, table=table, logits=logits, drafts=drafts, out=after)
        )
        table, given = after, {HIDDEN: own.value(OUTPUT)}
    return calls
