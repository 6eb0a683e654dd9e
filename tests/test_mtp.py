"""The MTP drafter on SmolLM2 proposes exactly the oracle's drafts, and changes no text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from replayer import compile_bundle
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.engine import Engine
from strata_runtime.launch import Launch
from strata_runtime.request import Request

DATA = Path(__file__).parent / "data"
TEXTS = json.loads((DATA / "smollm2-greedy-f32.json").read_text())["cases"]
DRAFTS = json.loads((DATA / "smollm2-mtp-f32.json").read_text())["cases"]
LENGTH = 64  # of the oracle's longest texts
LAYER = Path(__file__).parent.parent / "examples" / "smollm2-135m-mtp.gguf"


class Listener(CpuDevice):
    """Keeps what each draft program proposed: (slot, tokens known, drafts, probabilities).

    `withheld` drafts are heard of, but stand in no window: then every position is seen.
    """

    heard: list[tuple[int, int, list[int], npt.NDArray[np.float32]]]
    in_flight: dict[int, Launch]
    withheld: bool

    def submit(self, launch: Launch) -> None:
        """Remember the windows behind which a chain runs."""
        if launch.table.kind == "draft":
            self.in_flight[launch.table.context] = launch
        super().submit(launch)

    def drafts(self, context: int) -> npt.NDArray[np.int32]:
        """Write down what is proposed, with the length of the text that it follows."""
        words, verdict = super().drafts(context), self.verdict(context)
        table = self.in_flight[context].table
        for s, segment in enumerate(table.segments):
            known = table.rows[segment.first_row].position + int(verdict[s, 0]) + 2
            count = int(words[s, 0])
            line = words[s, 1 : 1 + 2 * count]
            self.heard.append((segment.slot, known, line[::2].tolist(), line[1::2].view("f4")))
        return np.zeros_like(words) if self.withheld else words


@pytest.fixture(scope="module")
def bundle(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two stages, four slots in two groups, three drafts, the full vocabulary."""
    draft = f"{{kind: mtp, model: {LAYER}, depth: 3}}"
    keys = {"stages": 2, "slots": 4, "groups": 2, "context": 256, "kv": "f32", "draft": draft}
    return compile_bundle(tmp_path_factory.mktemp("mtp"), smollm2, **keys)


@pytest.fixture(scope="module")
def device(bundle: Bundle) -> Iterator[Listener]:
    """The CPU device, its free memory NaN."""
    folder = bundle.folder
    draft = open_draft(bundle, folder)
    device = Listener(bundle, open_weights(bundle, folder), threads=1, draft=draft)
    for name, arena in bundle.manifest.memory["cpu"].arenas.items():
        if arena.role in ("cells", "contexts", "scratch"):
            device.arenas.arena(name).fill_(0xFF)
    device.heard, device.in_flight = [], {}
    yield device
    device.close()


def decode(
    bundle: Bundle, device: Listener, cases: list[int], withheld: bool
) -> tuple[int, list[tuple[int, int, list[int]]]]:
    """Decode texts, at most one a slot, and compare each draft with the oracle's.

    Returns how many drafts windows accepted, and (case, tokens drawn, drafts) for each chain.
    """
    device.heard, device.in_flight, device.withheld = [], {}, withheld
    engine = Engine(bundle.manifest, device)
    numbers = {}
    for i in cases:
        prompt = tuple(TEXTS[i]["prompt_ids"])
        numbers[engine.submit(Request(0, prompt, LENGTH + 2, frozenset({2})))] = i
    texts: dict[int, list[int]] = {i: [] for i in cases}
    accepted = 0
    for update in engine.updates():
        texts[numbers[update.request_id]] += update.tokens
        accepted += max(0, len(update.tokens) - 1)
    assert {i: text[:LENGTH] for i, text in texts.items()} == {i: TEXTS[i]["ids"] for i in cases}
    chains = []
    for slot, known, drafts, probabilities in device.heard:
        oracle = DRAFTS[cases[slot]]
        k = known - oracle["first_known_length"]
        if k < len(oracle["drafts"]):
            assert drafts == oracle["drafts"][k][: len(drafts)], (slot, known)
            expected = oracle["probabilities"][k][: len(drafts)]
            assert np.abs(probabilities - expected).max(initial=0) < 2e-3
            chains.append((cases[slot], k + 1, drafts))
    return accepted, chains


def test_four_streams_at_once_propose_the_oracles_drafts(bundle: Bundle, device: Listener) -> None:
    """Every draft of every chain, its probability, and texts that stay the oracle's."""
    accepted, chains = decode(bundle, device, [0, 1, 2, 4], withheld=False)
    assert accepted > 20 and sum(len(drafts) for _, _, drafts in chains) > 100


def test_every_position_proposes_the_oracles_drafts(bundle: Bundle, device: Listener) -> None:
    """All six texts, token by token: of 206 positions 92, 45 and 18 accept one, two, three."""
    held, positions = [0, 0, 0], 0
    for cases in ([0, 1, 2, 3], [4, 5]):
        accepted, chains = decode(bundle, device, cases, withheld=True)
        assert accepted == 0
        for case, drawn, drafts in chains:
            follows = TEXTS[case]["ids"][drawn : drawn + 3]
            if len(follows) == 3:
                positions += 1
                for n in range(3):
                    held[n] += drafts[: n + 1] == follows[: n + 1]
    assert (positions, held) == (206, [92, 45, 18])
