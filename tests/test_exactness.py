"""Row invariance, and promise 2: cells do not depend on how they were read. Bitwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import gguf_maker
from replayer import Replayer, compile_bundle, rows_of

LENGTHS = (1, 63, 64, 65, 200)
#: Lengths and torch's threads; two of them wait for each other beside another test's process.
READ = [*((n, 1) for n in LENGTHS), (65, 2), (200, 2)]
CHUNKS_IN_SOAK = [pytest.param(n, marks=pytest.mark.soak) for n in (1, 128)]
READ_IN_SOAK = [pytest.param(n, 2, marks=pytest.mark.soak) for n in LENGTHS[:3]]
WINDOWS = (1, 2, 3, 5, 8)


def tokens_of(seed: int, count: int, vocab: int) -> list[int]:
    """Random tokens of a conversation."""
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return found


@pytest.fixture(scope="module", params=["tiny", "odd heads", "smollm2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2, and llamas whose widths are no multiples of 32 (48; a vocabulary of 133)."""
    if request.param == "smollm2":
        path: Path = request.getfixturevalue("smollm2")
        return path
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    if request.param == "odd heads":  # of 10, and a head of 13 columns
        return gguf_maker.write_tiny_llama(path, heads=6, kv_heads=2, head_dim=10, vocab=13)
    return gguf_maker.write_tiny_llama(path)


@pytest.fixture(scope="module")
def replayer(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Replayer:
    """One stage, four slots, 0xff (NaN) in everything that is not a weight."""
    folder = tmp_path_factory.mktemp("bundle")
    bundle = compile_bundle(folder, model, slots=4, groups=2, context=512, kv="f32")
    return Replayer(bundle, poison=0xFF)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """torch's threads in this test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("length", "threads"), [*READ, *READ_IN_SOAK], indirect=["threads"])
def test_a_row_does_not_see_its_company(replayer: Replayer, length: int, threads: int) -> None:
    """Logits of the row at `length` - 1: every window width, every place, other company."""
    vocab = replayer.bundle.manifest.model.vocab
    replayer.poison(0xFF)
    probe = tokens_of(length, length + 8, vocab)
    others = {slot: tokens_of(100 + slot, 150, vocab) for slot in (1, 2, 3)}
    replayer.prompt(0, probe[: length - 1], 128)
    for slot, tokens in others.items():
        replayer.prompt(slot, tokens, 128)
    torch.set_num_threads(1)
    alone = replayer.window(rows_of(0, length - 1, probe[length - 1 : length]))[0]
    torch.set_num_threads(threads)
    assert (replayer.window(rows_of(0, length - 1, probe[length - 1 : length]))[0] == alone).all()
    # Two threads beside another test's process wait for each other: few of the large model's.
    large = replayer.bundle.manifest.model.layers > 10
    few = threads > 1 and large
    for width in WINDOWS[-1:] if few else WINDOWS:
        for place in range(0, width, 3 if few else 1):
            before = [
                row
                for i in range(place)
                for row in rows_of(1 + i % 3, 20 + 40 * (i // 3) + i, others[1][i : i + 1], i)
            ]
            mine = rows_of(0, length - 1, probe[length - 1 : length + width - place - 1], place)
            found = replayer.window([*before, *mine])
            assert (found[place] == alone).all(), (width, place)
    # In the middle of its own segment: the rows before it are its slot's own history.
    for lead in range(1, min(8, length), 6 if few else 1):
        start = length - 1 - lead
        found = replayer.window(rows_of(0, start, probe[start : start + lead + 1]))
        assert (found[lead] == alone).all(), lead


@pytest.mark.parametrize("chunk", [7, 32, 512, *CHUNKS_IN_SOAK])
def test_prompt_equals_window(replayer: Replayer, chunk: int) -> None:
    """A prompt in chunks leaves the bytes that windows leave, token cells among them."""
    manifest = replayer.bundle.manifest
    # A chunk of one row costs as much as one of 32: fewer of them on the large model.
    length = 511 if manifest.model.layers < 10 or chunk > 7 else 70
    tokens = tokens_of(7, length, manifest.model.vocab)
    replayer.poison(0xFF)
    replayer.prompt(1, tokens, chunk)
    read = replayer.cells(1, length)
    replayer.poison(0x00)
    replayer.decode(1, tokens, 8)
    assert read == replayer.cells(1, length)
    assert all(np.frombuffer(b, np.uint8).any() for b in read.values())


def test_eight_rows_are_one_product(replayer: Replayer) -> None:
    """No kernel call of exec.r8 is there more often than in exec.r1: rows are not a loop."""
    programs = replayer.bundle.programs
    one, eight = programs[0, "exec.r1"].calls, programs[0, "exec.r8"].calls
    assert [c.kernel for c in one] == [c.kernel for c in eight]
