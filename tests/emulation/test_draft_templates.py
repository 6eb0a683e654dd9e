"""The drafter's kernels as templates, on the CPU, against their references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from emulation import ORDERS, EmulationFault, compare, needs_compiler, prepare, run
from kernel_case import CONTEXTS, GARBAGE, Segment, bits, make_table, random_table
from kernel_examples import suited
from missing_barrier import without_barrier
from strata_kernels import concat, draft_back, draft_first, draft_pick, hidden_load, hidden_store
from strata_kernels.draft_first import DRAFT_WORDS
from strata_kernels.registry import KERNELS
from strata_kernels.render import Entry
from strata_kernels.table import ROW_LIMIT, Ints, TableView
from strata_kernels.verdict import WORDS
from template_case import bound, tables

pytestmark = needs_compiler

WINDOWS, PROMPT, VOCAB = (1, 3, 8), 32, 133

COPIES = [
    *(
        Entry(s, hidden_store.Params(rows, 133, 2))
        for s in (hidden_store.SPEC, hidden_load.SPEC)
        for rows in (*WINDOWS, PROMPT)
    ),
    *(Entry(s, hidden_store.Params(3, 300, 3)) for s in (hidden_store.SPEC, hidden_load.SPEC)),
    *(Entry(concat.SPEC, concat.Params(rows, 133, 48)) for rows in (*WINDOWS, PROMPT)),
    Entry(concat.SPEC, concat.Params(3, 5, 300)),
    *(Entry(draft_back.SPEC, draft_back.Params(rows)) for rows in (*WINDOWS, PROMPT)),
]
FIRSTS = {rows: Entry(draft_first.SPEC, draft_first.Params(rows)) for rows in WINDOWS}
BOUNDS = ((VOCAB, 1, 0.0), (VOCAB, 3, 0.02), (600, 7, 0.005), (5, 2, 0.4))
PICKS = [
    Entry(draft_pick.SPEC, draft_pick.Params(rows, vocab, step, min_p, 200))
    for rows in WINDOWS
    for vocab, step, min_p in BOUNDS
]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All of them as one unit."""
    prepare([*COPIES, *FIRSTS.values(), *PICKS])


def _id(entry: Entry) -> str:
    return entry.name.rsplit("_", 1)[0]


# ---- values that move


@pytest.mark.parametrize("entry", COPIES, ids=_id)
def test_values_move_as_in_the_reference(entry: Entry) -> None:
    """Live and inert rows, no live row, and rows at position 0."""
    rows = entry.params.rows
    for table in [*tables(rows), make_table(rows, [Segment(2, 0, (1,) * rows)])]:
        compare(entry, bound(entry, table))


@pytest.mark.parametrize("entry", COPIES, ids=_id)
def test_any_bits_stay_as_they_are(entry: Entry) -> None:
    """Payloads of NaN, denormal numbers, and whatever inert rows' fields hold."""
    rows, rng = entry.params.rows, np.random.default_rng(1)
    values = bound(entry, tables(rows)[0])
    for name, value in values.items():
        if value.dtype == torch.float32:
            raw = rng.integers(0, 256, value.numel() * value.itemsize, np.uint8)
            values[name] = torch.from_numpy(raw).view(torch.float32).view(value.shape)
    compare(entry, values)


def test_fields_of_inert_rows_may_be_anything() -> None:
    entry = next(e for e in COPIES if e.spec is draft_back.SPEC and e.params.rows == 8)
    for inert in (GARBAGE, -(1 << 31), -1):
        compare(entry, bound(entry, make_table(8, [Segment(1, 0, (1, 2), gap=2)], inert)))


# ---- the first step


def with_depths(words: Ints, rows: int, depths: Sequence[int]) -> Ints:
    """The table with its segments' depths."""
    TableView(words, rows).segment("depth")[:] = depths
    return words


def begin(rows: int, table: Ints, verdict: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """`draft_first`, compared with its reference."""
    words = torch.full((CONTEXTS, ROW_LIMIT, WORDS), GARBAGE, dtype=torch.int32)
    context = TableView(table, rows).header("context")
    lines = torch.tensor([*verdict, *[(0, 0)] * (ROW_LIMIT - len(verdict))], dtype=torch.int32)
    words[context, :, :2] = lines
    drafts = torch.zeros(CONTEXTS, ROW_LIMIT, DRAFT_WORDS, dtype=torch.int32)
    entry = FIRSTS[rows]
    return compare(entry, bound(entry, table, verdict=words, drafts=drafts))


def test_chains_begin_as_in_the_reference() -> None:
    """Several segments: accepted drafts, none wanted, a failed draw; inert rows between them."""
    segments = [
        Segment(3, 10, (1, 2, 3), gap=1),
        Segment(0, 0, (4,)),
        Segment(1, 20, (5,), gap=1),
        Segment(2, 30, (6,)),
    ]
    for context, inert in ((0, -1), (2, GARBAGE)):
        table = make_table(8, segments, inert, context=context)
        with_depths(table, 8, [2, 1, 0, 3])
        found = begin(8, table, [(2, 50), (0, 51), (0, 52), (0, -1)])
        assert TableView(found["out"].numpy(), 8).row("slot").tolist() == [3, 0, *[-1] * 6]
        assert not found["drafts"][context].any()


@pytest.mark.parametrize("rows", WINDOWS)
def test_first_steps_of_every_size(rows: int) -> None:
    begin(rows, make_table(rows, [], GARBAGE), [])
    one = with_depths(make_table(rows, [Segment(4, 60, (1,) * rows)]), rows, [7])
    for accepted in range(rows):
        begin(rows, one.copy(), [(accepted, 9)])
    many = make_table(rows, [Segment(s, 5 * s, (s,)) for s in range(rows)], context=1)
    begin(rows, with_depths(many, rows, range(rows)), [(0, 20 + s) for s in range(rows)])


# ---- a step


def probability_words(entry: Entry) -> torch.Tensor:
    """A mask of the one word of each line whose last bits may differ from the reference's."""
    mask = torch.zeros(CONTEXTS, ROW_LIMIT, DRAFT_WORDS, dtype=torch.bool)
    mask[:, :, 2 * entry.params.step] = True
    return mask


def picked(entry: Entry, table: Ints, **values: torch.Tensor) -> dict[str, torch.Tensor]:
    """`draft_pick`: all but probabilities bit for bit, those closely; the same in both orders."""
    given = bound(entry, table, 0, **values)
    mask = probability_words(entry)
    found = compare(entry, given, ignore={"drafts": mask})
    wanted = {name: value.clone() for name, value in given.items()}
    entry.spec.reference(entry.params, wanted)
    here = mask & (wanted["drafts"] != given["drafts"])  # where there is a draft
    ours, theirs = (v["drafts"][here].view(torch.float32) for v in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert bits(found["drafts"][~mask]) == bits(wanted["drafts"][~mask])
    again = {name: value.clone() for name, value in given.items()}
    run(entry, again, ORDERS[1])
    assert all(bits(again[name]) == bits(found[name]) for name in ("drafts", "out"))
    return found


def step_table(rows: int, positions: Sequence[int], **header: int) -> Ints:
    """One row for each segment, at the segment's number; depths 0, 2, 4 and so on."""
    segments = [Segment(7 - s, position, (s,)) for s, position in enumerate(positions)]
    table = make_table(rows, segments, GARBAGE, **header)
    return with_depths(table, rows, [2 * s for s in range(len(positions))])


@pytest.mark.parametrize("entry", PICKS, ids=lambda e: f"{_id(e)}-{e.params.vocab}")
def test_steps_are_as_in_the_reference(entry: Entry) -> None:
    """Random logits and tables; some rows inert, some at the context's end, or no live row."""
    rows, rng = entry.params.rows, np.random.default_rng(entry.params.vocab)
    end = [199, 198, 197, 196, 5, 0, 100, 198][:rows]
    found = [step_table(rows, end, context=2), make_table(rows, [], GARBAGE)]
    found.append(suited("draft_pick", random_table(rng, rows, 200, 3), rows))
    stopped = step_table(rows, end)
    TableView(stopped, rows).row("slot")[::2] = -1  # chains that have ended
    for seed, table in enumerate([*found, stopped]):
        noise = np.random.default_rng(seed).standard_normal((ROW_LIMIT, entry.params.vocab))
        picked(entry, table, logits=torch.from_numpy(noise.astype(np.float32) * (1 + seed)))


def _logits(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """Of eight rows, the last one again."""
    return torch.tensor([*rows, *[rows[-1]] * (ROW_LIMIT - len(rows))])


def _pick_of(**wanted: Any) -> Entry:
    return next(e for e in PICKS if all(getattr(e.params, k) == v for k, v in wanted.items()))


def test_ties_go_to_the_lower_id() -> None:
    """Also between zeros of both signs, and between tokens of other threads and warps."""
    entry = _pick_of(rows=8, vocab=600)
    rows = torch.full((ROW_LIMIT, 600), -20.0)
    for row, equal in enumerate(((599, 3), (300, 44), (256, 0), (40, 8), (33, 32), (512, 256))):
        rows[row, list(equal)] = 5.0
    rows[6] = 0.0
    rows[6, 0] = -0.0
    rows[7, 7], rows[7, 9] = -0.0, 0.0
    found = picked(entry, step_table(8, range(8)), logits=rows)
    tokens = TableView(found["out"].numpy(), 8).row("token")
    assert tokens.tolist() == [3, 44, 0, 8, 32, 256, 0, 7]


@pytest.mark.parametrize("min_p", [0.0, 0.4])
def test_logits_that_are_no_distribution(min_p: float) -> None:
    inf, nan = math.inf, math.nan
    rows = [
        [0.0, nan, 1.0, nan, inf],
        [-inf] * 5,
        [0.0, inf, inf, 1.0, 2.0],
        [-inf, -inf, 2.0, -inf, -inf],
        [-nan, 0.0, 1.0, 2.0, 3.0],
        [0.0, 0.0, 9.0, 0.0, 0.0],
    ]
    entry = _pick_of(rows=8, vocab=5)
    if min_p != entry.params.min_p:
        entry = Entry(draft_pick.SPEC, draft_pick.Params(8, 5, 2, min_p, 200))
    drafts = torch.zeros(CONTEXTS, ROW_LIMIT, DRAFT_WORDS, dtype=torch.int32)
    found = picked(entry, step_table(8, range(8)), logits=_logits(rows), drafts=drafts)
    assert found["drafts"][0, :, 0].tolist() == [0, 0, 0, 2, 0, 2, 2, 2]


def test_a_draft_does_not_depend_on_company() -> None:
    """Its words in windows of every size, at every place, in both orders."""
    rng = np.random.default_rng(2)
    own = torch.from_numpy(rng.standard_normal(VOCAB).astype(np.float32))
    words = set()
    for rows in WINDOWS:
        entry = _pick_of(rows=rows, vocab=VOCAB, step=1)
        for place in range(rows):
            logits = torch.from_numpy(rng.standard_normal((ROW_LIMIT, VOCAB)).astype(np.float32))
            logits[place] = own
            drafts = torch.zeros(CONTEXTS, ROW_LIMIT, DRAFT_WORDS, dtype=torch.int32)
            table = step_table(rows, [9] * rows)
            values = bound(entry, table, logits=logits, drafts=drafts)
            run(entry, values, ORDERS[place % 2])
            words.add(bits(values["drafts"][0, place]))
    assert len(words) == 1


@pytest.mark.parametrize("entry", [COPIES[-2], FIRSTS[8], _pick_of(rows=8, vocab=600)], ids=_id)
def test_a_missing_barrier_shows(entry: Entry) -> None:
    """That behind the copy of a table; that before the warps' largest keys are read."""
    table = suited(entry.spec.name, make_table(8, [Segment(1, 0, (1,) * 5)]), 8)
    with pytest.raises((AssertionError, EmulationFault)):
        library = without_barrier(entry, 0)
        compare(entry, bound(entry, table), library=library)


def test_every_template_of_this_file_is_a_kernel() -> None:
    """The specs are those of the registry."""
    every = (*COPIES, *FIRSTS.values(), *PICKS)
    assert all(KERNELS[e.spec.name] is e.spec for e in every)
