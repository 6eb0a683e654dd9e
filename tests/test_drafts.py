"""Drafts change no text: every stream's tokens and logits hashes are those of the stream alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gguf_maker import write_tiny_llama, write_tiny_nextn
from replayer import compile_bundle
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.drafters import Drafter, NgramDrafter, NoDrafter, ReplayDrafter
from strata_runtime.engine import Engine
from strata_runtime.launch import Sampling
from strata_runtime.request import Request

VOCAB = 133
LENGTH = 40
#: Stages, slots, windows in flight.
RIGS = [(1, 1, 1), (1, 4, 1), (2, 2, 2), (2, 4, 2), (4, 4, 4), (3, 6, 2)]
#: Is the draft at this position of the text right?
HOLDS: dict[str, Callable[[int], bool]] = {
    "all": lambda place: True,
    "none": lambda place: False,
    "alternating": lambda place: place % 2 == 0,
    "random": lambda place: random.Random(place).random() < 0.7,
}
DRAFTERS = ("none", "ngram", *(f"replay {name}" for name in HOLDS))
#: How far a layer's chain goes, and where it is cut.
CHAINS = ["depth: 3", "depth: 7, min_p: 0.02, vocab: 100"]
Text = tuple[list[int], str]


def requests() -> list[Request]:
    """Greedy, sampled and penalised texts; prompts of 1 to 70 tokens, one that repeats itself."""
    rng = random.Random(4)
    prompts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (1, 7, 33, 70)]
    prompts += [[5, 6, 7, 8] * 6, prompts[1]]
    sampled = Sampling(temperature=1.2, top_k=40, top_p=0.95, min_p=0.01, seed=9)
    penalised = Sampling(repeat_penalty=1.3, frequency_penalty=0.2, penalty_last=32)
    kinds = [Sampling(), sampled, penalised, Sampling(), sampled, Sampling(temperature=0.7)]
    pairs = zip(prompts, kinds, strict=True)
    return [Request(0, tuple(p), LENGTH - i, sampling=s) for i, (p, s) in enumerate(pairs)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama of four layers."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_tiny_llama(path, layers=4, vocab=VOCAB)


def make(folder: Path, model: Path, rig: tuple[int, int, int]) -> tuple[Bundle, CpuDevice]:
    """A bundle with look-up drafts of depth 7, on a device whose free memory is NaN."""
    stages, slots, groups = rig
    keys = {"stages": stages, "slots": slots, "groups": groups, "context": 128}
    bundle = compile_bundle(folder, model, **keys, draft="{kind: ngram, depth: 7}")
    device = CpuDevice(bundle, open_weights(bundle, bundle.folder), threads=1)
    for name, arena in bundle.manifest.memory["cpu"].arenas.items():
        if arena.role in ("cells", "contexts", "scratch"):
            device.arenas.arena(name).fill_(0xFF)
    return bundle, device


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Request, Text]:
    """Each text by itself, without drafts, in one stage."""
    bundle, device = make(tmp_path_factory.mktemp("alone"), model, (1, 1, 1))
    found = {}
    for request in requests():
        engine = Engine(bundle.manifest, device, drafter=lambda request: NoDrafter())
        found[request] = decode(engine, [request])[0][0]
    device.close()
    return found


@pytest.fixture(scope="module", params=RIGS, ids=str)
def rig(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Bundle, CpuDevice]]:
    """Stages, slots and windows in flight."""
    bundle, device = make(tmp_path_factory.mktemp("rig"), model, request.param)
    yield bundle, device
    device.close()


def decode(engine: Engine, wanted: list[Request], stagger: int = 0) -> tuple[list[Text], int, int]:
    """Decode requests, each admitted `stagger` updates after the one before; what was accepted.

    Returns the texts, the drafts that stood in windows, and those that were accepted.
    """
    todo, numbers = list(wanted), [engine.submit(wanted[0])]
    todo.pop(0)
    tokens: dict[int, list[int]] = {numbers[0]: []}
    hashes: dict[int, str] = {}
    heard, drafted, accepted = 0, 0, 0
    while engine.busy or todo:
        if todo and (heard >= stagger or not engine.busy):
            numbers.append(engine.submit(todo.pop(0)))
            tokens[numbers[-1]], heard = [], 0
            continue
        for update in engine.pump():
            heard, drafted = heard + 1, drafted + update.drafted
            accepted += max(len(update.tokens) - 1, 0)
            tokens[update.request_id] += update.tokens
            if update.logits_hash is not None:
                hashes[update.request_id] = update.logits_hash
    return [(tokens[n], hashes[n]) for n in numbers], drafted, accepted


def drafter_of(kind: str, alone: dict[Request, Text]) -> Callable[[Request], Drafter]:
    """What makes a drafter of this kind for a request; its id is the engine's."""
    if kind == "none":
        return lambda request: NoDrafter()
    if kind == "ngram":
        return lambda request: NgramDrafter()
    holds = HOLDS[kind.removeprefix("replay ")]
    records = {(r.prompt, r.sampling): [*r.prompt, *text] for r, (text, _) in alone.items()}

    def replay(request: Request) -> Drafter:
        return ReplayDrafter(records[request.prompt, request.sampling], VOCAB, holds)

    return replay


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("stagger", [0, 5])
def test_every_text_is_that_of_the_stream_alone(
    rig: tuple[Bundle, CpuDevice], alone: dict[Request, Text], kind: str, stagger: int
) -> None:
    """Tokens and logits hashes, whatever is drafted, accepted, and running beside."""
    bundle, device = rig
    engine = Engine(bundle.manifest, device, drafter=drafter_of(kind, alone))
    wanted = requests()
    texts, drafted, accepted = decode(engine, wanted, stagger)
    assert texts == [alone[request] for request in wanted]
    total = sum(len(tokens) for tokens, _ in texts)
    if kind == "replay all":
        assert accepted == drafted > total / 4
    elif kind == "none":
        assert drafted == 0
    else:
        assert drafted > 0 and accepted < drafted
        assert (accepted > 0) == (kind != "replay none")


def test_drafts_save_windows(rig: tuple[Bundle, CpuDevice], alone: dict[Request, Text]) -> None:
    """One stream whose drafts all hold needs an eighth of the windows."""
    bundle, device = rig
    engine = Engine(bundle.manifest, device, drafter=drafter_of("replay all", alone))
    (request, *_) = requests()
    _, drafted, accepted = decode(engine, [request])
    windows = request.max_tokens - accepted
    assert windows == -(-request.max_tokens // 8) and drafted == accepted


def test_look_up_drafts() -> None:
    """A look-up drafter finds what repeats, and proposes it."""
    drafter = NgramDrafter()
    drafter.extend([1, 2, 3, 4, 1, 2])
    assert drafter.propose(3) == (3, 4, 1)
    drafter.extend([9])
    assert drafter.propose(3) == ()
    drafter.extend([4, 1, 2])
    assert drafter.propose(7) == (9, 4, 1, 2)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("rig", [(1, 4, 1), (2, 4, 2), (3, 6, 2), (4, 4, 4)], ids=str)
def test_a_layer_that_drafts_changes_no_text(
    model: Path, alone: dict[Request, Text], tmp_path: Path, rig: tuple[int, int, int], chain: str
) -> None:
    """The MTP programs, random weights: most drafts are wrong, and no text shows it."""
    layer = write_tiny_nextn(tmp_path / "layer.gguf", layers=4, vocab=VOCAB)
    keys = dict(zip(("stages", "slots", "groups"), rig, strict=True))
    draft = f"{{kind: mtp, model: {layer}, {chain}}}"
    bundle = compile_bundle(tmp_path, model, **keys, context=128, draft=draft)
    weights = open_weights(bundle, tmp_path)
    device = CpuDevice(bundle, weights, threads=1, draft=open_draft(bundle, tmp_path))
    for name, arena in bundle.manifest.memory["cpu"].arenas.items():
        if arena.role in ("cells", "contexts", "scratch"):
            device.arenas.arena(name).fill_(0xFF)
    wanted = requests()
    for stagger in (0, 4):
        texts, drafted, accepted = decode(Engine(bundle.manifest, device), wanted, stagger)
        assert texts == [alone[request] for request in wanted]
        assert drafted > 50 and accepted < drafted
    device.close()
