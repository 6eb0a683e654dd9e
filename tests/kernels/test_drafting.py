"""The drafter's kernels: its rows in windows and prompts, its chain, and hidden states as cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kernel_case import GARBAGE, POISON_INT, Case, Segment, bind, bits, make_table, random_table
from strata_kernels import concat, draft_back, draft_first, draft_pick, hidden_load, hidden_store
from strata_kernels.draft_first import DRAFT_WORDS
from strata_kernels.table import LAYOUT, ROW_LIMIT, Ints, TableView
from strata_kernels.verdict import WORDS

VOCAB, CONTEXT = 7, 100


def with_depths(words: Ints, rows: int, depths: Sequence[int]) -> Ints:
    """The table with its segments' depths."""
    TableView(words, rows).segment("depth")[:] = depths
    return words


def out_table(case: Case) -> TableView:
    """The table that a kernel made."""
    return TableView(case["out"].numpy(), case.params.rows)


def places(table: TableView) -> list[tuple[int, int, int] | None]:
    """Slot, position and token of every row; None for inert ones."""
    fields = zip(*(table.row(f).tolist() for f in ("slot", "position", "token")), strict=True)
    return [(slot, position, token) if slot >= 0 else None for slot, position, token in fields]


# ---- hidden states, and values side by side


@pytest.mark.parametrize("rows", [3, 8, 32])
def test_hidden_states_come_back(rows: int) -> None:
    """What is stored at (slot, position) is what a row there loads, in chunks' order."""
    table = make_table(rows, [Segment(2, 63, (1,)), Segment(0, 5, (1,), gap=1)])
    stored = bind(hidden_store.SPEC, hidden_store.Params(rows, 45, 4), table).run()
    cells, x = stored["hidden_cells"], stored["x"]
    flat = cells[:, :, 0].reshape(len(cells), 4 * 64, 45)
    assert bits(flat[2, 63]) == bits(x[0]) and bits(flat[0, 5]) == bits(x[2])
    assert int(torch.isfinite(cells).all(-1).sum()) == 2
    loaded = bind(
        hidden_load.SPEC, hidden_store.Params(rows, 45, 4), table, {"hidden_cells": cells}
    )
    wanted = torch.zeros_like(x)
    wanted[[0, 2]] = x[[0, 2]]
    assert bits(loaded.run()["out"]) == bits(wanted)


def test_two_values_side_by_side() -> None:
    case = bind(concat.SPEC, concat.Params(3, 5, 2), make_table(3, [])).run()
    assert bits(case["out"][:, :5]) == bits(case["left"])
    assert bits(case["out"][:, 5:]) == bits(case["right"])


# ---- draft_back


def test_rows_step_back() -> None:
    """A row at position 0 has no cell before it; all other words stay."""
    segments = [Segment(3, 0, (4, 5), gap=1), Segment(1, 64, (6,)), Segment(2, 0, (7,))]
    table = make_table(5, segments, GARBAGE, context=2)
    case = bind(draft_back.SPEC, draft_back.Params(5), table.copy()).run()
    assert places(out_table(case)) == [None, None, (3, 0, 5), (1, 63, 6), None]
    changed = np.flatnonzero(case["out"].numpy() != table)
    fields = {(at - LAYOUT.rows_start) % len(LAYOUT.row) for at in changed.tolist()}
    assert {LAYOUT.row[at] for at in fields} == {"slot", "position"}
    assert min(changed) >= LAYOUT.rows_start and bits(case["table"]) == table.tobytes()


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_stepping_back_is_a_formula(rows: int) -> None:
    for seed in range(5):
        table = random_table(np.random.default_rng(seed), rows, rows, VOCAB)
        case = bind(draft_back.SPEC, draft_back.Params(rows), table).run()
        wanted = [
            (place[0], place[1] - 1, place[2]) if place and place[1] > 0 else None
            for place in places(TableView(table, rows))
        ]
        assert places(out_table(case)) == wanted


# ---- draft_first


def begun(
    rows: int, segments: Sequence[Segment], depths: Sequence[int], verdict: Sequence[Sequence[int]]
) -> Case:
    """Run `draft_first` in context 1; `verdict` holds (accepted, token) of each segment."""
    table = with_depths(make_table(rows, segments, GARBAGE, context=1), rows, depths)
    words = torch.full((3, ROW_LIMIT, WORDS), POISON_INT, dtype=torch.int32)
    for s, pair in enumerate(verdict):
        words[1, s, :2] = torch.tensor(pair, dtype=torch.int32)
    return bind(draft_first.SPEC, draft_first.Params(rows), table, {"verdict": words}).run()


def test_a_chain_begins_behind_the_accepted_rows() -> None:
    """Drafts were accepted; there were none; none are wanted; the draw failed."""
    segments = [
        Segment(3, 10, (1, 2, 3)),
        Segment(0, 0, (4,), gap=1),
        Segment(1, 20, (5,)),
        Segment(2, 30, (6, 6)),
    ]
    case = begun(8, segments, [2, 1, 0, 3], [(2, 50), (0, 51), (0, 52), (1, -1)])
    table = out_table(case)
    assert places(table) == [(3, 12, 50), (0, 0, 51), *[None] * 6]
    assert table.row("first_row")[:2].tolist() == [0, 1]
    assert table.row("index")[:2].tolist() == [0, 0]
    head = LAYOUT.rows_start  # header and segments are the launch's
    assert bits(case["out"][:head]) == bits(case["table"][:head])


def test_drafts_begin_with_none() -> None:
    """All lines of the context are zeros, and no other context's."""
    case = begun(1, [Segment(3, 10, (1,))], [1], [(0, 9)])
    assert case["drafts"].shape[1:] == (ROW_LIMIT, DRAFT_WORDS)
    assert not case["drafts"][1].any()
    assert set(case["drafts"][[0, 2]].flatten().tolist()) == {POISON_INT}
    assert not begun(3, [], [], [])["drafts"][1].any()


def test_eight_chains() -> None:
    segments = [Segment(7 - s, s, (s,)) for s in range(8)]
    case = begun(8, segments, [7] * 8, [(0, 20 + s) for s in range(8)])
    assert places(out_table(case)) == [(7 - s, s, 20 + s) for s in range(8)]


# ---- draft_pick


def step_table(rows: int, found: Sequence[tuple[int, int, int]], depths: Sequence[int]) -> Ints:
    """A step's table with one row (slot, position, token) for each segment."""
    segments = [Segment(slot, position, (token,)) for slot, position, token in found]
    return with_depths(make_table(rows, segments, context=1), rows, depths)


def pick(table: Ints, logits: torch.Tensor, drafts: torch.Tensor | None = None, **of: Any) -> Case:
    """Run `draft_pick` on logits of the table's rows; zeros for the others."""
    rows = (len(table) - LAYOUT.rows_start) // len(LAYOUT.row)
    known = {"vocab": logits.shape[1], "step": 1, "min_p": 0.0, "context": CONTEXT, **of}
    padded = torch.zeros(ROW_LIMIT, logits.shape[1])
    padded[: len(logits)] = logits
    none = torch.zeros(3, ROW_LIMIT, DRAFT_WORDS, dtype=torch.int32)
    values = {"logits": padded, "drafts": none if drafts is None else drafts}
    return bind(draft_pick.SPEC, draft_pick.Params(rows, **known), table, values).run()


def line(case: Case, segment: int) -> tuple[list[int], list[float]]:
    """Tokens and probabilities of a segment's drafts; the words behind them must be zeros."""
    words = case["drafts"][1, segment].clone()
    count = int(words[0])
    assert not words[1 + 2 * count :].any()
    pairs = words[1 : 1 + 2 * count].view(-1, 2)
    return pairs[:, 0].tolist(), pairs[:, 1].contiguous().view(torch.float32).tolist()


def distribution(*top: float) -> list[float]:
    """Logits with these probabilities first; what they leave is shared by the other tokens."""
    rest = (1 - sum(top)) / (VOCAB - len(top))
    return [math.log(p) for p in (*top, *[rest] * (VOCAB - len(top)))]


def test_a_draft_is_the_most_probable_token() -> None:
    rng = np.random.default_rng(0)
    found = [(slot, 10 + slot, 1) for slot in (4, 2, 7, 0)]
    logits = torch.from_numpy(rng.standard_normal((4, VOCAB), np.float32) * 3)
    case = pick(step_table(5, found, [2] * 4), logits)
    wanted = torch.softmax(logits.double(), -1)
    for s, (slot, position, _) in enumerate(found):
        tokens, probabilities = line(case, s)
        assert tokens == [int(wanted[s].argmax())]
        assert probabilities == pytest.approx([float(wanted[s].max())], rel=1e-6)
        assert places(out_table(case))[s] == (slot, position + 1, tokens[0])
    assert places(out_table(case))[4] is None and line(case, 4) == ([], [])


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[0.0, 3, 1, 3, 3, 0, 0], [0.0] * VOCAB, [-0.0] + [0.0] * (VOCAB - 1)])
    case = pick(step_table(3, [(s, 4, 1) for s in range(3)], [1] * 3), logits)
    assert [line(case, s)[0] for s in range(3)] == [[1], [0], [0]]
    assert line(case, 1)[1] == pytest.approx([1 / VOCAB])


def test_a_draft_that_is_not_probable_is_dropped() -> None:
    """It ends its own chain and no other; a probability of min_p itself is enough."""
    logits = torch.tensor([distribution(0.6), distribution(0.4), [0.0, *[-math.inf] * 6]])
    table = step_table(3, [(s, 4, 1) for s in range(3)], [2] * 3)
    case = pick(table, logits, min_p=0.5)
    assert [line(case, s)[0] for s in range(3)] == [[0], [], [0]]
    assert [place is None for place in places(out_table(case))] == [False, True, False]
    certain = pick(table, logits, min_p=1.0)
    assert [line(certain, s) for s in range(3)] == [([], []), ([], []), ([0], [1.0])]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("min_p", [0.0, 0.5])
def test_logits_that_are_no_distribution_give_no_draft(bad: float, min_p: float) -> None:
    logits = torch.tensor([[0.0, bad, 1.0], [-math.inf] * 3, [0.0, 9.0, 1.0]])
    case = pick(step_table(3, [(s, 4, 1) for s in range(3)], [2] * 3), logits, min_p=min_p)
    assert [line(case, s)[0] for s in range(3)] == [[], [], [1]]
    assert places(out_table(case)) == [None, None, (2, 5, 1)]


@pytest.mark.parametrize(("position", "goes_on"), [(97, True), (98, False), (99, False)])
def test_a_chain_ends_with_the_context(position: int, goes_on: bool) -> None:
    """The draft is kept; the step behind it would be past the last position but one."""
    case = pick(step_table(1, [(3, position, 1)], [7]), torch.tensor([distribution(0.9)]))
    assert line(case, 0)[0] == [0]
    assert places(out_table(case)) == [(3, position + 1, 0) if goes_on else None]


def test_a_later_draft_stands_behind_the_others() -> None:
    """Step 3 writes the third pair, and keeps the first two."""
    drafts = torch.zeros(3, ROW_LIMIT, DRAFT_WORDS, dtype=torch.int32)
    drafts[1, 0, :5] = torch.tensor([2, 5, 11, 6, 12])
    case = pick(step_table(1, [(3, 9, 1)], [3]), torch.tensor([distribution(0.5)]), drafts, step=3)
    assert case["drafts"][1, 0, :6].tolist() == [3, 5, 11, 6, 12, 0]
    assert not case["drafts"][[0, 2]].any()
    assert places(out_table(case)) == [None]  # the depth is reached


def test_a_segment_is_drafted_alike_in_any_company() -> None:
    """Token and probability, to the last bit, in every place of every size."""
    rng = np.random.default_rng(1)
    own = torch.from_numpy(rng.standard_normal(133, np.float32))
    wanted = set()
    for rows in (1, 2, 3, 5, 8):
        for place in range(rows):
            logits = torch.from_numpy(rng.standard_normal((rows, 133), np.float32))
            logits[place] = own
            case = pick(step_table(rows, [(s, 5, 1) for s in range(rows)], [2] * rows), logits)
            wanted.add(bits(case["drafts"][1, place]))
    assert len(wanted) == 1


# ---- a whole chain


def chain(depths: Sequence[int], steps: Sequence[Sequence[float]], **of: Any) -> Case:
    """Segments of one row each from `draft_first` on; at step k all see logits of `steps[k - 1]`.

    Token k is the most probable one of step k, with the probability that `steps` names.
    """
    rows = len(depths)
    segments = [Segment(s, 10 * s, (1,)) for s in range(rows)]
    case = begun(rows, segments, depths, [(0, 3)] * rows)
    table, drafts = case["out"], torch.where(case["drafts"] == POISON_INT, 0, case["drafts"])
    for k, top in enumerate(steps, 1):
        logits = torch.tensor([distribution(p) for p in top]).roll(k, -1)
        case = pick(table.numpy(), logits, drafts, step=k, **of)
        table, drafts = case["out"], case["drafts"]
    return case


def test_chains_end_at_their_own_depth() -> None:
    case = chain([3, 0, 1, 2], [[0.5] * 4, [0.6] * 4, [0.7] * 4])
    assert [line(case, s)[0] for s in range(4)] == [[1, 2, 3], [], [1], [1, 2]]
    assert line(case, 0)[1] == pytest.approx([0.5, 0.6, 0.7])
    assert places(out_table(case)) == [None] * 4


def test_chains_end_where_drafts_are_not_probable() -> None:
    """What later steps would find probable again does not count."""
    case = chain([3, 3, 3], [[0.9, 0.9, 0.3], [0.9, 0.4, 0.9], [0.9, 0.9, 0.9]], min_p=0.5)
    assert [line(case, s)[0] for s in range(3)] == [[1, 2, 3], [1], []]


def test_chains_end_at_the_context() -> None:
    """Slots stand at positions 0, 10 and 20, of 12; as many drafts as the context has room for."""
    case = chain([3, 3], [[0.9] * 2] * 3, context=12)
    assert [line(case, s)[0] for s in range(2)] == [[1, 2, 3], [1]]


def test_the_longest_chain_fills_its_line() -> None:
    case = chain([7], [[0.9]] * 7)  # step 7 comes round to token 0
    assert line(case, 0)[0] == [1, 2, 3, 4, 5, 6, 0]
    assert int(case["drafts"][1, 0, 0]) == ROW_LIMIT - 1
