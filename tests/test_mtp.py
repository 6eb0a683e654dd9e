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
LAYER = Path(__file__).parent.parent / "examples" / "smollm2-135m-mtp.gguf"


class Listener(CpuDevice):
    """Keeps what each draft program proposed: (slot, tokens known, drafts, probabilities)."""

    heard: list[tuple[int, int, list[int], npt.NDArray[np.float32]]]
    in_flight: dict[int, Launch]

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
        return words


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


def test_four_streams_at_once_propose_the_oracles_drafts(bundle: Bundle, device: Listener) -> None:
    """Every draft of every chain, its probability, and texts that stay the oracle's."""
    engine = Engine(bundle.manifest, device)
    cases = [0, 1, 2, 4]
    numbers = {}
    for i in cases:
        numbers[engine.submit(Request(0, tuple(TEXTS[i]["prompt_ids"]), 64, frozenset({2})))] = i
    texts: dict[int, list[int]] = {i: [] for i in cases}
    accepted = 0
    for update in engine.updates():
        texts[numbers[update.request_id]] += update.tokens
        accepted += max(0, len(update.tokens) - 1)
    assert texts == {i: TEXTS[i]["ids"] for i in cases}
    checked = 0
    for slot, known, drafts, probabilities in device.heard:
        oracle = DRAFTS[cases[slot]]
        k = known - oracle["first_known_length"]
        if k >= len(oracle["drafts"]):
            continue
        wanted = oracle["drafts"][k][: len(drafts)]
        assert drafts == wanted, (slot, known)
        expected = oracle["probabilities"][k][: len(drafts)]
        assert np.abs(probabilities - expected).max(initial=0) < 2e-3
        checked += len(drafts)
    assert checked > 100 and accepted > 20
