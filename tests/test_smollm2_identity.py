"""The real model and its real drafter: every text is bit for bit what it is alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from identity import Rig, Watched, decode
from replayer import compile_bundle
from strata_runtime.drafters import NgramDrafter, ReplayDrafter
from strata_runtime.engine import Engine
from strata_runtime.launch import Sampling
from strata_runtime.request import Request
from strata_runtime.schedule import Schedule
from token_by_token import POISON, Alone, fill_free

DATA = Path(__file__).parent / "data"
TEXTS = json.loads((DATA / "smollm2-greedy-f32.json").read_text())["cases"]
LAYER = Path(__file__).parent.parent / "examples" / "smollm2-135m-mtp.gguf"
LENGTH = 14
MTP = f"{{kind: mtp, model: {LAYER}, depth: auto}}"
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=11)
PENALISED = Sampling(temperature=0.5, repeat_penalty=1.2, penalty_last=64, seed=12)
KINDS = (Sampling(), SAMPLED, Sampling(), PENALISED, Sampling())
REQUESTS = [
    Request(0, tuple(case["prompt_ids"]), LENGTH - i, frozenset({2}), kind)
    for i, (case, kind) in enumerate(zip(TEXTS, KINDS, strict=False))
]


@pytest.fixture(scope="module")
def alone(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """One stage, one slot, no drafts."""
    folder = tmp_path_factory.mktemp("alone")
    made = Alone(compile_bundle(folder, smollm2, context=256, kv="f32"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("stages", "slots", "groups", "draft", "schedule", "stagger"),
    [
        (2, 2, 2, MTP, Schedule(), 0),
        (4, 4, 2, MTP, Schedule(windows=2, drafts=3), 3),
        (1, 4, 1, "{kind: ngram, depth: 5}", Schedule(drafts=5), 0),
        (2, 4, 4, "{kind: ngram, depth: 7}", Schedule(slots=1, drafts=7), 2),
    ],
    ids=["mtp, chosen", "mtp, 3 drafts", "ngram", "replay, lanes"],
)
def test_every_text_is_what_it_is_alone(
    smollm2: Path,
    alone: Alone,
    tmp_path: Path,
    stages: int,
    slots: int,
    groups: int,
    draft: str,
    schedule: Schedule,
    stagger: int,
) -> None:
    """Greedy, sampled and penalised streams; more of them than slots; memory that is NaN."""
    keys = {"stages": stages, "slots": slots, "groups": groups, "context": 256, "kv": "f32"}
    rig = Rig(compile_bundle(tmp_path, smollm2, **keys, draft=draft))
    fill_free(rig.threads.arenas, rig.bundle.manifest, POISON)
    vocab = rig.bundle.manifest.model.vocab

    def replay(request: Request) -> ReplayDrafter:
        (mine,) = [r for r in REQUESTS if r.prompt == request.prompt]
        text = (*mine.prompt, *alone.text(mine).tokens)
        return ReplayDrafter(text, vocab, lambda place: place % 3 != 0)

    drafters = {MTP: None, "{kind: ngram, depth: 5}": lambda request: NgramDrafter()}
    device = Watched(rig.threads)
    engine = Engine(
        rig.bundle.manifest, device, drafter=drafters.get(draft, replay), schedule=schedule
    )
    texts, heard = decode(engine, REQUESTS, stagger)
    rig.close()
    assert texts == [alone.text(request) for request in REQUESTS]
    assert 0 < device.accepted < device.drafted and heard.ended_beside
