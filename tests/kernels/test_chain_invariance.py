"""A layer as a chain of kernels: a text's logits and cells are the same however it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from kernel_case import SLOTS, Segment, bits, make_table
from layer_chain import VOCAB, Cells, Chain, random_cells

LENGTHS = (1, 63, 64, 65, 200)
SLOT = 2
TOKENS = np.random.default_rng(3).integers(0, VOCAB, 256).tolist()

both_types = pytest.mark.parametrize("cell_type", ["f32", "f16"])


def start(cell_type: str, length: int, slot: int = SLOT, seed: int = 0) -> Cells:
    """A slot with `length` committed cells, always the same; everything else follows `seed`."""
    cells = random_cells(cell_type, seed + 1)
    cells.put(slot, *random_cells(cell_type, 0).history(SLOT, length))
    return cells


def own(first: int, count: int, slot: int = SLOT, gap: int = 0) -> Segment:
    """Rows of the text from position `first` on."""
    return Segment(slot, first, TOKENS[first : first + count], gap)


def company(rng: np.random.Generator, slots: Sequence[int], rows: int) -> list[Segment]:
    """Segments of other slots in at most `rows` rows."""
    segments = []
    for slot in slots:
        count = int(rng.integers(0, rows + 1))
        if count:
            tokens = rng.integers(0, VOCAB, count).tolist()
            segments.append(Segment(slot, int(rng.integers(0, 240)), tokens))
            rows -= count
    return segments


def assert_same_row(chain: Chain, length: int, rows: int, place: int, threads: int = 1) -> None:
    """The last row of a history, alone and at a place of a program with random company."""
    cells = start(chain.cell_type, length - 1)
    wanted = chain.run(make_table(1, [own(length - 1, 1)]), 1, cells)
    rng = np.random.default_rng([length, rows, place])
    slot = int(rng.integers(0, SLOTS))
    others = [s for s in range(SLOTS) if s != slot]
    before = company(rng, others[:3], place)
    gap = place - sum(len(s.tokens) for s in before)
    after = company(rng, others[3:], rows - place - 1)
    table = make_table(rows, [*before, own(length - 1, 1, slot, gap), *after])
    found_cells = start(chain.cell_type, length - 1, slot, seed=rows)
    torch.set_num_threads(threads)
    found = chain.run(table, rows, found_cells)
    torch.set_num_threads(1)
    assert bits(found["logits"][place]) == bits(wanted["logits"][0])
    assert bits(found["hashes"][place]) == bits(wanted["hashes"][0])
    pairs = zip(cells.history(SLOT, length), found_cells.history(slot, length), strict=True)
    assert all(bits(a) == bits(b) for a, b in pairs)


@both_types
@pytest.mark.parametrize("length", LENGTHS)
def test_programs_places_and_company(cell_type: str, length: int) -> None:
    """In every place of programs of 1 to 8 rows."""
    chain = Chain(cell_type)
    for rows in (1, 2, 3, 5, 8):
        for place in range(rows):
            assert_same_row(chain, length, rows, place)


@both_types
@pytest.mark.parametrize("length", LENGTHS)
def test_threads(cell_type: str, length: int) -> None:
    for rows, place in ((1, 0), (3, 1), (8, 6)):
        assert_same_row(Chain(cell_type), length, rows, place, threads=2)


def decode(
    chain: Chain, first: int, cuts: Sequence[int], prompt: int = 0
) -> tuple[list[bytes], list[bytes]]:
    """Logits and cells of a text that is cut into windows, or into prompts of `prompt` rows."""
    cells = start(chain.cell_type, first, seed=len(cuts))
    logits = []
    at = first
    for count in cuts:
        rows = prompt or max(count, 1)
        found = chain.run(make_table(rows, [own(at, count)]), rows, cells, bool(prompt))
        logits += [bits(x) for x in found["logits"][:count]]
        at += count
    return logits, [bits(x) for x in cells.history(SLOT, at)]


@both_types
@pytest.mark.parametrize("first", [0, 58, 120])
def test_windows_of_a_text(cell_type: str, first: int) -> None:
    """Rows of one window see each other as rows of later windows do."""
    chain = Chain(cell_type)
    wanted = decode(chain, first, [1] * 16)
    for cuts in ([8, 8], [3, 5, 8], [1, 2, 3, 4, 5, 1], [7, 2, 7]):
        assert decode(chain, first, cuts) == wanted


@both_types
def test_prompts_of_a_text(cell_type: str, threads: Callable[[int], None]) -> None:
    """What is read as a prompt is what would be read row by row, at any size of chunks."""
    chain = Chain(cell_type)
    first, total = 50, 136
    wanted = decode(chain, first, [1] * total)
    assert decode(chain, first, [8] * 17) == wanted
    assert decode(chain, first, [32, 32, 7, 32, 1, 32], prompt=32) == wanted
    assert decode(chain, first, [128, 8], prompt=128) == wanted
    threads(2)
    assert decode(chain, first, [5, 100, 31], prompt=128) == wanted


def test_rejected_rows_leave_no_trace() -> None:
    """Drafts that were not accepted are overwritten; what they wrote is never read."""
    chain = Chain("f16")
    wanted = decode(chain, 60, [1] * 8)
    cells = start("f16", 60, seed=9)
    logits = []
    for at in range(60, 68):
        wrong = [TOKENS[at], *[(t + 1) % VOCAB for t in TOKENS[at + 1 : at + 4]]]
        found = chain.run(make_table(4, [Segment(SLOT, at, wrong)]), 4, cells)
        logits.append(bits(found["logits"][0]))
    assert (logits, [bits(x) for x in cells.history(SLOT, 68)]) == wanted


def test_the_method_sees_a_difference() -> None:
    """One bit of one cell of the history changes the hash."""
    chain = Chain("f32")
    table = make_table(1, [own(199, 1)])
    hashes = []
    for change in (0.0, 1e-6):
        cells = start("f32", 199)
        cells.k[SLOT, 0, 0, 5, 3] += change
        hashes.append(int(chain.run(table, 1, cells)["hashes"][0].sum()))
    assert hashes[0] != hashes[1]
    assert torch.equal(random_cells("f32", 1).k, random_cells("f32", 1).k)
