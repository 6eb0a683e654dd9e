"""The engine on the CPU device: a text is the same alone and in any company, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch

import gguf_maker
from replayer import compile_bundle
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.engine import Engine
from strata_runtime.errors import RequestError
from strata_runtime.launch import Sampling
from strata_runtime.request import CONTEXT, FAILED, LENGTH, STOP, Request

Rig = tuple[int, int, int]  #: stages, slots, groups
Bundles = dict[Rig, Bundle]

VOCAB, SPACE = 133, 200
RIGS: tuple[Rig, ...] = ((1, 1, 1), (1, 4, 2), (2, 2, 2), (2, 3, 1), (3, 4, 2), (3, 4, 4))
ALONE = RIGS[0]


def prompt(seed: int, count: int) -> tuple[int, ...]:
    """Random tokens."""
    found = torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))
    return tuple(found.tolist())


REQUESTS = (
    Request(0, prompt(1, 1), 12),
    Request(0, prompt(2, 70), 10, sampling=Sampling(temperature=0.9, top_k=20, seed=5)),
    Request(0, prompt(3, 130), 8),
    Request(
        0, prompt(4, 17), 40, frozenset(range(12)), Sampling(temperature=2.0, seed=(1 << 40) + 9)
    ),
    Request(
        0,
        prompt(5, 66),
        14,
        sampling=Sampling(0.7, top_p=0.9, repeat_penalty=1.3, presence_penalty=0.4, penalty_last=9),
    ),
    Request(0, prompt(6, SPACE - 4), 50),
)


@dataclass
class Text:
    """Everything that was heard of a request."""

    tokens: tuple[int, ...] = ()
    finish: str | None = None
    logits: str = ""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """One model, compiled for every rig. Its head is its own, so that a row may be victim."""
    folder = tmp_path_factory.mktemp("engine")
    model = gguf_maker.write_tiny_llama(folder / "tiny.gguf", layers=3, tied=False, vocab=VOCAB)
    found = {}
    for stages, slots, groups in RIGS:
        keys = {"stages": stages, "slots": slots, "groups": groups, "context": SPACE}
        place = folder / f"{stages}.{slots}.{groups}"
        found[stages, slots, groups] = compile_bundle(
            place, model, **keys, prompt="{sizes: [16, 64]}"
        )
    return found


@contextmanager
def engine_on(bundle: Bundle, chunk_rows: int | None = None) -> Iterator[tuple[Engine, CpuDevice]]:
    """An engine whose device holds NaN wherever nothing was written yet."""
    device = CpuDevice(bundle, open_weights(bundle, bundle.folder), threads=1)
    try:
        for name, arena in bundle.manifest.memory["cpu"].arenas.items():
            if arena.role in ("cells", "contexts", "scratch"):
                device.arenas.arena(name).fill_(0xFF)
        yield Engine(bundle.manifest, device, chunk_rows), device
    finally:
        device.close()


def texts_of(engine: Engine, numbers: Sequence[int]) -> list[Text]:
    """Run until nothing is left to do; what was heard of these requests."""
    found: dict[int, Text] = {}
    for update in engine.updates():
        text = found.setdefault(update.request_id, Text())
        assert text.finish is None, "an update after the last"
        text.tokens += update.tokens
        text.finish = update.finish
        text.logits = update.logits_hash or ""
    return [found[number] for number in numbers]


@pytest.fixture(scope="module")
def alone(bundles: Bundles) -> dict[Request, Text]:
    """Every request by itself, each on a device of its own."""
    found = {}
    for request in REQUESTS:
        with engine_on(bundles[ALONE]) as (engine, _):
            (found[request],) = texts_of(engine, [engine.submit(request)])
    return found


def test_texts_alone(alone: dict[Request, Text]) -> None:
    """They are of several lengths and ends, and no two are alike."""
    ends = [text.finish for text in alone.values()]
    assert ends == [LENGTH, LENGTH, LENGTH, STOP, LENGTH, CONTEXT]
    assert [len(t.tokens) for t in alone.values()][:3] == [12, 10, 8]
    stopped, full = alone[REQUESTS[3]].tokens, alone[REQUESTS[5]].tokens
    assert stopped[-1] < 12 <= min(stopped[:-1]) and len(full) == 5
    assert len({text.logits for text in alone.values()}) == len(REQUESTS)
    assert all(len(text.logits) == 16 for text in alone.values())


@pytest.mark.parametrize("chunk_rows", [1, 7, None])
@pytest.mark.parametrize("rig", RIGS, ids=str)
def test_company_changes_nothing(
    bundles: Bundles,
    alone: dict[Request, Text],
    rig: Rig,
    chunk_rows: int | None,
) -> None:
    """Tokens and the hashes of all their logits; more requests than slots, so they are reused."""
    order = [REQUESTS[i] for i in (2, 0, 4, 3, 1, 5)]
    with engine_on(bundles[rig], chunk_rows) as (engine, _):
        numbers = [engine.submit(request) for request in order]
        found = texts_of(engine, numbers)
    assert found == [alone[request] for request in order]
    assert not engine.busy


@pytest.mark.parametrize("pumps", range(0, 24, 3))
def test_a_slot_is_given_away_while_its_window_is_in_flight(
    bundles: Bundles, alone: dict[Request, Text], pumps: int
) -> None:
    with engine_on(bundles[2, 2, 2]) as (engine, _):
        victim = engine.submit(replace(REQUESTS[2], max_tokens=60))
        other = engine.submit(REQUESTS[0])
        heard = [update for _ in range(pumps) for update in engine.pump()]
        engine.cancel(victim)
        third = engine.submit(REQUESTS[4])
        early = tuple(t for u in heard if u.request_id == other for t in u.tokens)
        if not any(u.finish for u in heard if u.request_id == other):
            rest, new = texts_of(engine, [other, third])
            assert replace(rest, tokens=early + rest.tokens) == alone[REQUESTS[0]]
        else:
            (new,) = texts_of(engine, [third])
    assert new == alone[REQUESTS[4]]
    assert sum(slot.epoch for slot in engine._state.slots) == 3


def test_cancelling_everything_leaves_nothing(bundles: Bundles, alone: dict[Request, Text]) -> None:
    with engine_on(bundles[3, 4, 2]) as (engine, _):
        for _ in range(3):
            for number in [engine.submit(request) for request in REQUESTS]:
                engine.cancel(number)
                engine.cancel(number)
            assert list(engine.updates()) == [] and not engine.busy
        (text,) = texts_of(engine, [engine.submit(REQUESTS[1])])
    assert text == alone[REQUESTS[1]]


@pytest.mark.parametrize("rig", [(1, 4, 2), (2, 3, 1), (3, 4, 4)], ids=str)
def test_logits_that_are_no_numbers_end_their_own_request(
    bundles: Bundles,
    alone: dict[Request, Text],
    rig: Rig,
) -> None:
    """A token embeds to NaN. Who has it fails; who shares its windows or its slot does not."""
    used = {t for request, text in alone.items() for t in request.prompt + text.tokens}
    poison = min({*range(VOCAB)} - used)
    victim = Request(0, (*prompt(8, 30), poison, *prompt(9, 20)), 9)
    with engine_on(bundles[rig]) as (engine, device):
        device.arenas.buffer("0/token_embd.weight")[poison] = torch.nan
        order = [REQUESTS[0], victim, REQUESTS[4], victim, REQUESTS[1], REQUESTS[2], REQUESTS[5]]
        found = texts_of(engine, [engine.submit(request) for request in order])
    for request, text in zip(order, found, strict=True):
        expected = Text((), FAILED, text.logits) if request is victim else alone[request]
        assert text == expected


def test_a_model_of_no_numbers(bundles: Bundles) -> None:
    with engine_on(bundles[ALONE]) as (engine, device):
        device.arenas.buffer("0/output_norm.weight").fill_(torch.nan)
        (text,) = texts_of(engine, [engine.submit(REQUESTS[0])])
        assert (text.tokens, text.finish) == ((), FAILED)
        assert not engine.busy


@pytest.mark.parametrize("rig", [ALONE, (2, 3, 1)], ids=str)
def test_a_watcher_ends_its_text(
    bundles: Bundles,
    alone: dict[Request, Text],
    rig: Rig,
) -> None:
    """It sees every token once, in order, and none after the one it stops at."""
    seen: list[int] = []

    def watch(token: int) -> bool:
        seen.append(token)
        return len(seen) == 5

    with engine_on(bundles[rig]) as (engine, _):
        numbers = [engine.submit(REQUESTS[0], watch), engine.submit(REQUESTS[1])]
        stopped, other = texts_of(engine, numbers)
    whole = alone[REQUESTS[0]].tokens
    assert (stopped.tokens, stopped.finish, tuple(seen)) == (whole[:5], STOP, whole[:5])
    assert other == alone[REQUESTS[1]]


def test_a_hash_is_of_the_tokens_that_belong_to_the_text(
    bundles: Bundles, alone: dict[Request, Text]
) -> None:
    """A shorter text has another hash, however it was cut."""
    cuts = []
    with engine_on(bundles[ALONE]) as (engine, _):
        for length in (11, 5, 5):
            request = replace(REQUESTS[0], max_tokens=length)
            (text,) = texts_of(engine, [engine.submit(request)])
            cuts.append(text)
        fifth = itertools.count(1)
        watched = engine.submit(REQUESTS[0], lambda token: next(fifth) == 5)
        (stopped,) = texts_of(engine, [watched])
    assert cuts[1] == cuts[2] and stopped.logits == cuts[1].logits
    assert len({cuts[0].logits, cuts[1].logits, alone[REQUESTS[0]].logits}) == 3


@pytest.mark.parametrize("free", [0, 1, 3])
def test_a_text_ends_where_the_context_does(bundles: Bundles, free: int) -> None:
    with engine_on(bundles[2, 2, 2]) as (engine, _):
        request = Request(0, prompt(11, SPACE - free), 50)
        (text,) = texts_of(engine, [engine.submit(request)])
    assert (len(text.tokens), text.finish) == (free + 1, CONTEXT)


def test_a_request_that_cannot_be_served_changes_nothing(
    bundles: Bundles, alone: dict[Request, Text]
) -> None:
    with engine_on(bundles[ALONE]) as (engine, _):
        for bad in ((), (VOCAB,), (1,) * (SPACE + 1)):
            with pytest.raises(RequestError):
                engine.submit(Request(0, bad, 5))
        assert not engine.busy
        numbers = [engine.submit(REQUESTS[0]), engine.submit(REQUESTS[0])]
        assert numbers == [1, 2]
        assert texts_of(engine, numbers) == [alone[REQUESTS[0]]] * 2
