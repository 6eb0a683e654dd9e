"""sample and verdict as templates, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from draw_cases import CHUNKS, Row, window
from emulation import ORDERS, EmulationFault, Library, compare, needs_compiler, prepare, run
from kernel_case import Case, Segment, bind, make_table, random_table
from missing_barrier import without_barrier
from row_company import case_of, own_bytes
from strata_kernels import sample, verdict
from strata_kernels.philox import philox
from strata_kernels.render import (
    Entry,
    HostEntry,
    render_entry,
    render_host_entries,
    render_unit,
)
from strata_kernels.spec import Geometry

pytestmark = needs_compiler

VOCAB, SIZES = 133, (1, 2, 3, 8)
INF = math.inf


@pytest.fixture(scope="module", autouse=True)
def units() -> None:
    """Every size and vocabulary in one translation unit."""
    params = [sample.Params(rows, VOCAB, chunks) for rows in SIZES for chunks in (CHUNKS, 4)]
    params += [sample.Params(8, vocab, CHUNKS) for vocab in (3, 5, 600)]
    prepare(
        [
            *(Entry(sample.SPEC, p) for p in params),
            *(Entry(verdict.SPEC, verdict.Params(rows, 1 + rows % 2)) for rows in SIZES),
        ]
    )


def checked(case: Case) -> list[int]:
    """The template's draws, after a comparison of all bits with the reference in both orders."""
    found = compare(Entry(case.spec, case.params), case.tensors)["draws"]
    return [int(token) for token in found[: case.params.rows]]


def padded_rows(rows: Sequence[Row]) -> list[Row]:
    """Eight of them, the last one again, so that few entries serve all tests."""
    return [*rows, *[rows[-1]] * (8 - len(rows))]


def drawn(*rows: Row) -> list[int]:
    """Checked draws of up to eight rows."""
    return checked(window(*padded_rows(rows)))[: len(rows)]


# ---- greedy


def test_greedy_ties_go_to_the_lower_id() -> None:
    wide = [0.0] * VOCAB
    wide[40] = wide[77] = wide[132] = 2.5
    assert drawn(Row(wide), Row([0.0] * VOCAB), Row([-1.0] * 132 + [0.0])) == [40, 0, 132]
    zeros = [[-0.0, 0.0, -1.0], [0.0, -0.0, -1.0], [-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]]
    assert drawn(*(Row(x) for x in zeros)) == [0, 0, 1, 1]
    assert drawn(Row([-5.0, -3.0, -9.0]), Row([-INF, -1e-40, -INF])) == [1, 1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_impossible_rows_give_minus_one(temperature: float) -> None:
    fields = {"temperature": temperature, "top_k": 2, "top_p": 0.5}
    rows = [
        Row([1.0, 2.0, 3.0], fields, allowed=[]),
        Row([1.0, math.nan, 3.0], fields),
        Row([-math.nan, 2.0, 3.0], fields),
        Row([-INF, -INF, -INF], fields),
        Row([1.0, INF, 3.0], fields),
        Row([1.0, 2.0, 3.0], fields, bias=[-INF, -INF, -INF]),
        Row([math.nan, 1.0, INF], fields, allowed=[1]),
    ]
    assert drawn(*rows) == [-1] * 6 + [1]


# ---- everything at once


def random_row(rng: np.random.Generator, vocab: int, temperatures: Sequence[float]) -> Row:
    """Random logits, history and parameters."""
    position = int(rng.integers(0, 64 * CHUNKS))
    fields = {
        "temperature": rng.choice(temperatures),
        "top_k": rng.choice([0, 0, 1, 7, vocab - 1, vocab, 1000]),
        "top_p": rng.choice([0.01, 0.3, 0.9, 1.0, 1.0]),
        "min_p": rng.choice([0.0, 0.0, 0.05, 0.3, 1.0]),
        "repeat_penalty": rng.choice([0.75, 1.0, 1.3]),
        "presence_penalty": rng.choice([-0.5, 0.0, 0.3]),
        "frequency_penalty": rng.choice([-0.1, 0.0, 0.25]),
        "penalty_last": rng.choice([0, 1, 10, 64, 1 << 30]),
        "seed_low": rng.integers(-(1 << 31), 1 << 31),
        "seed_high": rng.integers(-(1 << 31), 1 << 31),
    }
    logits = (rng.standard_normal(vocab) * 3).astype(np.float32)
    if rng.random() < 0.3:
        logits = logits.round()  # many ties
    allowed = np.flatnonzero(rng.random(vocab) < 0.7).tolist() or [0]
    return Row(
        logits.tolist(),
        {name: float(value) for name, value in fields.items()},
        position,
        rng.integers(0, vocab, int(rng.integers(0, position + 2))).tolist(),
        rng.choice([-1.1, 0.0, 2.3], vocab).tolist() if rng.random() < 0.5 else None,
        allowed if rng.random() < 0.5 else None,
    )


@pytest.mark.parametrize(("vocab", "count"), [(5, 5), (VOCAB, 40), (600, 5)])
def test_draws_equal_the_reference(vocab: int, count: int) -> None:
    """Windows of eight random rows; the logits, changed in place, to the last bit."""
    rng = np.random.default_rng(vocab)
    for _ in range(count):
        draws = checked(window(*(random_row(rng, vocab, [0.5, 1.0, 2.0]) for _ in range(8))))
        assert min(draws) >= 0


def test_greedy_equals_the_reference() -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        checked(window(*(random_row(rng, VOCAB, [0.0]) for _ in range(8))))


@pytest.mark.parametrize("rows", SIZES)
def test_windows_of_every_size(rows: int) -> None:
    """Several rows of a slot, inert rows, empty windows; inert rows keep their logits."""
    params, rng = sample.Params(rows, VOCAB, 4), np.random.default_rng(rows)
    for table in [make_table(rows, []), *(random_table(rng, rows, 256, VOCAB) for _ in range(3))]:
        checked(bind(sample.SPEC, params, table, seed=rows))


def test_parameters_at_their_ends() -> None:
    """Ties at every bound, temperatures that underflow, filters that leave nothing or all."""
    ties, sharp = [0.0] * VOCAB, [math.log(i + 1.0) for i in range(VOCAB)]
    ends: list[dict[str, float]] = [
        {"top_p": 0.5},
        {"top_k": 4, "top_p": 0.75},
        {"top_k": 1},
        {"top_k": VOCAB},
        {"min_p": 1.0},
        {"min_p": 2.0},
        {"top_p": 1e-30},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"temperature": 1e-40},
        {"temperature": 1e30},
        {"top_k": -3},
    ]
    for logits in (ties, sharp, [-INF, *ties[2:], -200.0]):
        for at in (0, 4, 8):
            fields = ({"temperature": 1.0, **f} for f in ends[at : at + 4])
            drawn(*(Row(logits, f, position=at + i) for i, f in enumerate(fields)))


def test_a_number_on_a_border_belongs_to_the_next_token() -> None:
    """Token i of four has [i/4, (i + 1)/4); seeds were searched for that give exactly i/4."""
    seeds = (492835, 13331100, 13506109)
    rows = [Row([0.0] * 4 + [-INF], {"temperature": 1.0, "seed_low": seed}) for seed in seeds]
    assert drawn(*rows) == [0, 1, 2]


@pytest.mark.parametrize("length", [1, 65, 200])
def test_a_draw_does_not_depend_on_company(length: int) -> None:
    """The row's token and its logits in windows of any size, at any place, in both orders."""
    wanted: dict[str, bytes] = {}
    for rows in SIZES:
        for place in range(rows):
            params = sample.Params(rows, VOCAB, 4)
            case = case_of("sample", params, rows, place, length, seed=2)
            run(Entry(case.spec, params), case.tensors, ORDERS[place % 2])
            found = own_bytes(case, place, length)
            wanted = wanted or found
            assert found == wanted and set(found) == {"logits", "draws"}


@pytest.mark.parametrize("number", [0, 3])
def test_a_missing_barrier_shows(number: int) -> None:
    """That behind the bias, before penalties; and that before the block's sums are written anew."""
    case = window(*(random_row(np.random.default_rng(i), VOCAB, [1.0]) for i in range(8)))
    entry = Entry(case.spec, case.params)
    with pytest.raises((AssertionError, EmulationFault)):
        compare(entry, case.tensors, library=without_barrier(entry, number))


# ---- philox

PROBE = """
KERNEL probe(const i32* inputs, i32* words) {{
  const i32* own = inputs + 3 * thread_x();
  words[thread_x()] = i32({name}_::philox(u32(own[0]), u32(own[1]), u32(own[2])));
}}
"""


def test_philox_words_equal() -> None:
    """The template's function on its own: (position, low, high) to the first word."""
    entry = Entry(sample.SPEC, sample.Params(1, 3, 1))
    threads = 256
    geometry = HostEntry("probe", ("i32", "i32"), Geometry((1, 1, 1), threads))
    parts = [render_unit([], "host"), render_entry(entry, "host")]
    parts += [PROBE.format(name=entry.name), render_host_entries([geometry])]
    library = Library("\n".join(parts))
    inputs = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (threads, 3)).astype(np.int32)
    inputs[:8] = [[a, b, c] for a in (0, -1) for b in (0, -1) for c in (0, -1)]
    found = torch.zeros(threads, dtype=torch.int32)
    library.run("probe", [torch.from_numpy(inputs), found], ORDERS[0])
    position, low, high = inputs.view(np.uint32).astype(np.uint64).T
    zero = np.zeros_like(position)
    words = philox((position, zero, zero, zero), (low, high))[0]
    assert found.numpy().view(np.uint32).tolist() == words.tolist()


# ---- verdict


def judged(rows: int, segments: Sequence[Segment], draws: Sequence[int]) -> list[list[int]]:
    """Accepted and token of the first segments, compared with the reference in both orders."""
    params, table = verdict.Params(rows, 1), make_table(rows, segments, context=1)
    hashes = torch.zeros(8, 1, dtype=torch.int64)
    hashes[:rows, 0] = torch.arange(-3, rows - 3) * 0x123456789ABCDEF
    filled = torch.tensor([*draws, *[-1] * (8 - len(draws))], dtype=torch.int32)
    case = bind(verdict.SPEC, params, table, {"draws": filled, "hashes": hashes})
    found = compare(Entry(case.spec, params), case.tensors)["verdict"]
    return [[int(word) for word in line[:2]] for line in found[1, : len(segments)]]


@pytest.mark.parametrize("rows", SIZES)
def test_a_verdict_of_every_size(rows: int) -> None:
    """Drafts count up to the first difference; rows that the program lacks have no hash."""
    tokens = tuple(range(10, 10 + rows))
    for accepted in range(rows):
        draws = [token + 1 for token in tokens]
        draws[accepted] = 99
        assert judged(rows, [Segment(2, 7, tokens)], draws) == [[accepted, 99]]
    assert judged(rows, [], [1] * rows) == []


@pytest.mark.parametrize(("forced", "accepted"), [(-1, 3), (0, 0), (1, 1), (3, 3), (9, 3)])
def test_forced_bounds_what_is_accepted(forced: int, accepted: int) -> None:
    segments = [
        Segment(1, 3, (5, 6)),
        Segment(2, 7, (10, 11, 12, 13), gap=1, fields={"forced": (forced, -1, -1, -1)}),
        Segment(0, 9, (20,)),
    ]
    draws = [6, 7, -1, 11, 12, 13, 14, 30]
    assert judged(8, segments, draws) == [[1, 7], [accepted, 11 + accepted], [0, 30]]


def test_eight_segments_and_an_impossible_draw() -> None:
    segments = [Segment(slot, 5, (slot,)) for slot in range(8)]
    assert judged(8, segments, range(20, 28)) == [[0, 20 + i] for i in range(8)]
    assert judged(3, [Segment(2, 7, (10, 11, 12))], [-1, 12, 13]) == [[0, -1]]
