"""The draw itself: keyed by seed and position, in order of probability, true to the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from draw_cases import HISTORY, Row, draw, draw_many, plain_draw, uniforms
from kernel_case import Segment, bind, make_table
from strata_kernels import sample
from strata_kernels.philox import uniform


def test_equal_probabilities_are_drawn_in_order_of_id() -> None:
    """Eight equal tokens: the token is the number's upper three bits."""
    assert draw_many([0.0] * 8, 500, temperature=1.0) == [int(8 * u) for u in uniforms(500)]


def test_the_order_is_of_probability() -> None:
    """Weights 4, 2, 1, 1: the number's place decides, the largest first, ties by id."""
    logits = [0.0, math.log(2), 0.0, math.log(4)]
    wanted = [3 if u < 0.5 else 1 if u < 0.75 else 0 if u < 0.875 else 2 for u in uniforms(500)]
    assert draw_many(logits, 500, temperature=1.0) == wanted


@pytest.mark.parametrize(
    ("seed", "position", "number"), [(2, 7487565, 0.0), (0, 630968, 0.25), (1, 241083, 0.5)]
)
def test_a_number_on_a_border_belongs_to_the_next_token(
    seed: int, position: int, number: float
) -> None:
    """Token i of four has [i/4, (i + 1)/4); positions were searched for."""
    low, zero = np.array([seed], np.int32), np.zeros(1, np.int32)
    assert uniform(low, zero, np.array([position], np.int32))[0] == number
    fields = {"temperature": 1.0, "seed_low": seed}
    assert draw(Row([0.0] * 4, fields, position - 1)) == [int(4 * number)]


def test_filters_renormalise() -> None:
    """What is left shares the whole interval."""
    found = draw_many([0.0] * 8, 500, temperature=1.0, top_k=4)
    assert found == [int(4 * u) for u in uniforms(500)]


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 0), (0, 1), (-1, -1), (1 << 30, -5)])
def test_both_words_of_the_seed_count(low: int, high: int) -> None:
    found = draw_many([0.0] * 64, 200, temperature=1.0, seed_low=low, seed_high=high)
    assert found == [int(64 * u) for u in uniforms(200, low, high)]
    assert ((low, high) == (0, 0)) == (found == draw_many([0.0] * 64, 200, temperature=1.0))


def random_row(rng: np.random.Generator, vocab: int) -> Row:
    """Everything at once."""
    position = int(rng.integers(0, HISTORY))
    tokens = rng.integers(0, vocab, int(rng.integers(0, position + 2)))
    allowed = np.flatnonzero(rng.random(vocab) < 0.7).tolist() or [0]
    fields = {
        "temperature": float(rng.choice([0.0, 0.5, 1.0, 2.0])),
        "top_k": float(rng.choice([0, 1, 7, 1000])),
        "top_p": float(rng.choice([0.3, 0.9, 1.0])),
        "min_p": float(rng.choice([0.0, 0.05, 0.3])),
        "repeat_penalty": float(rng.choice([0.75, 1.0, 1.5])),
        "presence_penalty": float(rng.choice([-0.5, 0.0, 0.5])),
        "frequency_penalty": float(rng.choice([-0.125, 0.0, 0.25])),
        "penalty_last": float(rng.choice([0, 1, 10, 64, 1000])),
        "seed_low": float(rng.integers(-(1 << 31), 1 << 31)),
        "seed_high": float(rng.integers(-(1 << 31), 1 << 31)),
    }
    return Row(
        (rng.standard_normal(vocab) * 3).astype(np.float32).tolist(),
        fields,
        position,
        tokens.tolist(),
        rng.choice([-1.0, 0.0, 2.0], vocab).tolist() if rng.random() < 0.5 else None,
        allowed if rng.random() < 0.5 else None,
    )


@pytest.mark.parametrize("vocab", [5, 33, 133])
def test_all_steps_together(vocab: int) -> None:
    """Random rows of random settings against the documented order in float64."""
    rng = np.random.default_rng(vocab)
    for _ in range(60):
        rows = [random_row(rng, vocab) for _ in range(int(rng.integers(1, 9)))]
        assert draw(*rows) == [plain_draw(row) for row in rows]


def test_a_draw_does_not_depend_on_company() -> None:
    """The same row alone, in every place, and with other company."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        row = random_row(rng, 133)
        alone = draw(row)
        for place in range(8):
            company = [random_row(rng, 133) for _ in range(7)]
            assert draw(*company[:place], row, *company[place:])[place] == alone[0]


def test_a_draw_does_not_depend_on_the_slot_or_the_window() -> None:
    """One slot's eight positions in one window, or one by one in another slot."""
    logits = torch.from_numpy(np.random.default_rng(1).standard_normal((8, 133), np.float32))
    fields = {"temperature": 1.2, "seed_low": 77}
    table = make_table(8, [Segment(1, 60, (5,) * 8, fields=fields)])
    together = bind(sample.SPEC, sample.Params(8, 133, 2), table, {"logits": logits}).run()
    for i in range(8):
        table = make_table(1, [Segment(3, 60 + i, (5,), fields=fields)])
        values = {"logits": logits[i].repeat(8, 1)}
        alone = bind(sample.SPEC, sample.Params(1, 133, 2), table, values).run()
        assert alone["draws"][0] == together["draws"][i]


@pytest.mark.parametrize(("temperature", "seed"), [(1.0, 3), (0.6, 4), (3.0, 5)])
def test_draws_are_distributed_as_the_softmax(temperature: float, seed: int) -> None:
    """χ² of 4 000 positions over 6 tokens: 5 degrees of freedom, bound at 1e-4."""
    logits = [0.5, -1.0, 1.25, 0.0, 1.0, -0.5]
    found = draw_many(logits, 4000, temperature=temperature, seed_low=seed)
    weights = np.exp(np.array(logits) / temperature)
    wanted = 4000 * weights / weights.sum()
    counts = np.bincount(found, minlength=6)
    assert ((counts - wanted) ** 2 / wanted).sum() < 25.7


def test_neighbouring_positions_are_independent() -> None:
    """χ² of pairs of successive draws over 4 × 4: 15 degrees of freedom, bound at 1e-4."""
    found = np.array(draw_many([0.0] * 4, 4000, temperature=1.0, seed_low=8))
    pairs = np.bincount(4 * found[:-1:2] + found[1::2], minlength=16)
    assert ((pairs - 125) ** 2 / 125).sum() < 44.3


def weights_sum(x: torch.Tensor) -> float:
    """The total weight of a row, summed in order of probability."""
    ordered = torch.sort(x, descending=True, stable=True).values
    return float(torch.exp(ordered - ordered[0]).sum(dtype=torch.float64))


def balanced_logits(vocab: int) -> list[torch.Tensor]:
    """Two rows, one bit apart, whose weights add up to 2 and to the next number above 2.

    With top_p = 0.5 the second token is kept or not, as the total is above 2 or not: so the order
    of the sum shows in the token.
    """
    x = torch.from_numpy(np.random.default_rng(1).standard_normal(vocab).astype(np.float32))
    x = x * 3 - 11
    x[:6] = torch.tensor([0.0, -0.7, -6.0, -14.0, -21.0, -28.0])
    x[6:] += math.log(0.45 / float(x[6:].double().exp().sum()))
    for token in (1, 2, 3, 4, 5):  # from coarse to fine
        for _ in range(2):
            x[token] = math.log(math.exp(float(x[token])) + 2.0 - weights_sum(x))
    below, above = x.clone(), x.clone()
    below[5] -= 2.0**-8
    above[5] += 2.0**-8
    while not torch.equal(middle := (below + above) / 2, below) and not torch.equal(middle, above):
        below, above = (middle, above) if weights_sum(middle) <= 2.0 else (below, middle)
    return [below, above]


def test_at_a_tie_of_top_p_a_draw_does_not_depend_on_rows_or_threads(
    threads: Callable[[int], None],
) -> None:
    """The total of a large vocabulary is summed alike in every launch."""
    vocab, fields = 40_000, {"temperature": 1.0, "top_p": 0.5}
    position = next(i for i, u in enumerate(uniforms(100)) if u > 0.9)
    tied = balanced_logits(vocab)
    assert [weights_sum(x) > 2.0 for x in tied] == [False, True]
    found = []
    for rows, count in ((1, 1), (1, 2), (8, 1), (8, 2)):
        threads(count)
        table = make_table(rows, [Segment(0, position, (1,) * rows, fields=fields)])
        for x in tied:
            values = {"logits": x.expand(8, vocab), "bias": x[None]}
            values["mask"] = torch.zeros(1, -(-vocab // 32), dtype=torch.int32)
            case = bind(sample.SPEC, sample.Params(rows, vocab, 2), table, values).run()
            found.append(int(case["draws"][0]))
    assert found == found[:2] * 4
