"""logits_hash: every bit and every place counts, splits do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kernel_case import Segment, bind, make_table
from strata_kernels import logits_hash

VOCAB = 133
WORD = (1 << 64) - 1


def hashes(logits: torch.Tensor) -> list[int]:
    """The kernel's hashes of up to 8 rows."""
    rows = len(logits)
    padded = torch.zeros(8, logits.shape[1])
    padded[:rows] = logits
    segments = [Segment(slot, 4) for slot in range(rows)]
    params = logits_hash.Params(rows, logits.shape[1])
    case = bind(logits_hash.SPEC, params, make_table(rows, segments), {"logits": padded}).run()
    found: list[int] = case["hashes"][:rows].sum(-1).tolist()
    return found


def random_row(seed: int = 0) -> torch.Tensor:
    """One row of logits."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(VOCAB, np.float32))


def splitmix(x: int) -> int:
    """The finaliser of splitmix64 with Python's integers."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def plain(values: Sequence[float]) -> int:
    """Σ bits(x_i) · (splitmix64's i-th output | 1), as a signed 64-bit number."""
    total = 0
    for i, value in enumerate(values):
        factor = splitmix((i + 1) * 0x9E3779B97F4A7C15 & WORD) | 1
        total += int(np.float32(value).view(np.int32)) * factor
    total &= WORD
    return total - (1 << 64) if total >> 63 else total


def test_splitmix_of_seed_zero() -> None:
    """The published first outputs, so that the loop above is the generator it says."""
    found = [splitmix((i + 1) * 0x9E3779B97F4A7C15 & WORD) for i in range(3)]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_the_value() -> None:
    rows = torch.stack([random_row(seed) for seed in range(5)])
    rows[3, :4] = torch.tensor([-0.0, torch.inf, -torch.inf, 1e-42])
    assert hashes(rows) == [plain(row.tolist()) for row in rows]
    assert hashes(torch.tensor([[-1.0]])) == [plain([-1.0])]


def flips(row: torch.Tensor) -> torch.Tensor:
    """Every row that differs in one bit."""
    words = row.view(torch.int32).repeat(32 * len(row), 1)
    masks = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)
    for i in range(len(row)):
        words[32 * i : 32 * i + 32, i] ^= torch.from_numpy(masks)
    return words.view(torch.float32)


def test_any_single_bit_changes_it() -> None:
    row = random_row()
    found = logits_hash.row_hashes(torch.cat([row[None], flips(row)]))
    assert len(found) == 1 + 32 * VOCAB == len(set(found.tolist()))
    assert found[0] == hashes(row[None])[0]


def test_any_swap_changes_it() -> None:
    row = random_row()
    pairs = torch.combinations(torch.arange(VOCAB))
    swapped = row.repeat(len(pairs), 1)
    which = torch.arange(len(pairs))[:, None]
    swapped[which, pairs] = swapped[which, pairs.flip(1)]
    found = logits_hash.row_hashes(torch.cat([row[None], swapped]))
    assert len(set(found.tolist())) == 1 + len(pairs)


def test_small_errors_in_many_places_change_it() -> None:
    """One unit in the last place, at any two places and in any directions."""
    row = random_row()
    words = row.view(torch.int32).repeat(4 * VOCAB * (VOCAB - 1) // 2, 1)
    pairs = torch.combinations(torch.arange(VOCAB)).repeat(4, 1)
    signs = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.int32)
    signs = signs.repeat_interleave(len(pairs) // 4, 0)
    words[torch.arange(len(pairs))[:, None], pairs] += signs
    found = logits_hash.row_hashes(words.view(torch.float32))
    assert len(set(found.tolist())) == len(pairs)
    assert hashes(row[None])[0] not in found


@pytest.mark.parametrize("width", [1, 5, 31, 32, 133])
def test_a_sum_over_any_split(width: int) -> None:
    """Parts that keep their places, the rest zeros (which add nothing), add up to the whole."""
    row = random_row()
    parts = torch.zeros(-(-VOCAB // width), VOCAB)
    for i in range(len(parts)):
        part = slice(i * width, (i + 1) * width)
        parts[i, part] = row[part]
    total = int(np.array(logits_hash.row_hashes(parts).tolist(), np.int64).sum())
    assert total == hashes(row[None])[0]


def test_the_sign_of_zero_counts() -> None:
    row = random_row()
    row[7] = 0.0
    negative = row.clone()
    negative[7] = -0.0
    assert hashes(row[None]) != hashes(negative[None])


def test_rows_are_hashed_apart_and_inert_rows_are_zero() -> None:
    rows = torch.stack([random_row(seed) for seed in range(8)])
    table = make_table(8, [Segment(1, 0, (1, 1), gap=1), Segment(2, 5, gap=2)])
    case = bind(logits_hash.SPEC, logits_hash.Params(8, VOCAB), table, {"logits": rows}).run()
    expected = [plain(row.tolist()) for row in rows]
    live = (1, 2, 5)
    assert case["hashes"].sum(-1).tolist() == [
        h if i in live else 0 for i, h in enumerate(expected)
    ]
