"""The CUDA device's own programs: rows know nothing of each other, and cells not how they came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from card_case import CardReplayer, cards_of
from gguf_maker import write_tiny_llama
from gpu_kernels import GPU
from replayer import Replayer, rows_of
from strata_runtime.bundle_load import Bundle

VOCAB, CONTEXT = 133, 320
LENGTHS = (1, 63, 64, 65, 200)
KEYS = {"slots": 4, "groups": 2, "context": CONTEXT, "prompt": "{sizes: [8, 32]}"}
#: (where, type of the matrices, stages, type of the cells); the fake card's must be F32.
MODELS = [
    pytest.param(("fake", "F32", 2, "f32"), id="fake"),
    *(
        pytest.param(("gpu", kind, stages, cells), marks=pytest.mark.gpu, id=f"gpu-{kind}-{stages}")
        for kind, stages, cells in (
            *(("F32", 1, "f32"), ("F16", 2, "f16"), ("BF16", 1, "f16"), ("Q4_1", 4, "f32")),
            *(("Q8_0", 1, "f16"), ("Q4_K", 2, "f16"), ("Q5_K", 1, "f32"), ("Q6_K", 1, "f16")),
        )
    ),
]

#: Plans of one model that differ in their stages.
SHARES: list[dict[str, object]] = [
    {"stages": stages, "partition": partition}
    for partition in ("none", "sms")
    for stages in (1, 2, 4)
]


def tokens_of(seed: int, count: int) -> list[int]:
    """Random tokens of a conversation."""
    found: list[int] = np.random.default_rng(seed).integers(0, VOCAB, count).tolist()
    return found


def model(folder: Path, kind: str) -> Path:
    """A tiny llama whose matrices are whole blocks of any type."""
    blocks = kind not in ("F32", "F16")
    embedding, ff = (256, 512) if blocks else (48, 80)
    ftype, path = GGMLQuantizationType[kind], folder / "tiny.gguf"
    return write_tiny_llama(path, layers=4, vocab=VOCAB, ftype=ftype, embedding=embedding, ff=ff)


@pytest.fixture(scope="module", params=MODELS)
def replayer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CardReplayer]:
    """A bundle on a card; NaN in everything that is not a weight."""
    place, kind, stages, kv = request.param
    folder = tmp_path_factory.mktemp("bundle")
    cards = cards_of(place)
    keys = {**KEYS, "stages": stages, "kv": kv, "targets": f"[cpu, {cards.arch}]"}
    bundle = cards.compile(folder, model(folder, kind), **keys)
    replayer = CardReplayer(bundle, cards.open(bundle))
    yield replayer
    replayer.close()


@pytest.mark.parametrize("length", LENGTHS)
def test_a_row_does_not_see_its_company(replayer: CardReplayer, length: int) -> None:
    """Logits of the row at `length` - 1: every window width, every place, other company."""
    probe = tokens_of(length, length + 8)
    others = {slot: tokens_of(100 + slot, 150) for slot in (1, 2, 3)}
    replayer.poison(0xFF)
    replayer.prompt(0, probe[: length - 1], 32)
    for slot, tokens in others.items():
        replayer.prompt(slot, tokens, 32)
    alone = replayer.window(rows_of(0, length - 1, probe[length - 1 : length]))[0]
    assert np.isfinite(alone.view(np.float32)).all() and alone.any()
    for width in range(1, 9):
        for place in range(width):
            before = [
                row
                for i in range(place)
                for row in rows_of(1 + i % 3, 20 + 40 * (i // 3) + i, others[1][i : i + 1], i)
            ]
            mine = rows_of(0, length - 1, probe[length - 1 : length + width - place - 1], place)
            found = replayer.window([*before, *mine])
            assert (found[place] == alone).all(), (width, place)
    for lead in range(1, min(8, length)):  # in the middle of its own segment
        start = length - 1 - lead
        found = replayer.window(rows_of(0, start, probe[start : start + lead + 1]))
        assert (found[lead] == alone).all(), lead


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_prompt_equals_window(replayer: CardReplayer, chunk: int) -> None:
    """A prompt in chunks leaves the bytes that windows leave, token cells among them."""
    length = 2 * CONTEXT // 3 if chunk > 1 else 70
    tokens = tokens_of(7, length)
    replayer.poison(0xFF)
    replayer.prompt(1, tokens, chunk)
    read = replayer.cells(1, length)
    replayer.poison(0x00)
    replayer.decode(1, tokens, 8)
    assert read == replayer.cells(1, length)
    replayer.poison(0x7F)
    replayer.decode(1, tokens, 3)
    assert read == replayer.cells(1, length)
    assert all(np.frombuffer(b, np.uint8).any() for b in read.values())


def test_logits_are_those_of_the_cpu_device(replayer: CardReplayer) -> None:
    """To float32 rounding, and the same most probable token; on the fake card to the last bit."""
    bundle: Bundle = replayer.bundle
    cpu, tokens = Replayer(bundle, poison=0xFF), tokens_of(3, 80)
    for each in (cpu, replayer):
        each.poison(0xFF)
        each.prompt(2, tokens[:72], 32)
    rows = rows_of(2, 72, tokens[72:80])
    expected, found = (each.window(rows).view(np.float32) for each in (cpu, replayer))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_twenty_runs_leave_the_same_bytes(replayer: CardReplayer) -> None:
    """Logits and cells of a prompt and of windows, on memory that held something else."""
    seen = set()
    for run in range(20):
        replayer.poison(run * 13 % 256)
        replayer.prompt(0, tokens_of(5, 40), 32)
        logits = replayer.window(rows_of(0, 40, tokens_of(6, 5)))
        cells = tuple(replayer.cells(0, 45).items())
        seen.add((logits.tobytes(), cells, replayer.device.verdict(0)[:5].tobytes()))
    assert len(seen) == 1


@pytest.mark.parametrize("place", ["fake", GPU])
def test_stages_change_nothing(place: str, tmp_path: Path) -> None:
    """However many there are, and whatever they share: the same logits and the same cells."""
    seen, cards = set(), cards_of(place)
    for number, keys in enumerate(SHARES if place == "gpu" else SHARES[1::3]):
        folder = tmp_path / str(number)
        folder.mkdir()
        keys = {**KEYS, "targets": f"[cpu, {cards.arch}]", **keys}
        bundle = cards.compile(folder, model(folder, "F32"), **keys)
        replayer = CardReplayer(bundle, cards.open(bundle))
        replayer.prompt(3, tokens_of(8, 70), 32)
        logits = replayer.window(rows_of(3, 70, tokens_of(9, 4)))
        cells = {name.partition("/")[2]: b for name, b in replayer.cells(3, 74).items()}
        seen.add((logits.tobytes(), tuple(sorted(cells.items()))))
        replayer.close()
    assert len(seen) == 1
