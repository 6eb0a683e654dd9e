"""The drafter's cells: without holes, the same from prompts and windows, copied with the rest."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from gguf_maker import write_tiny_llama, write_tiny_nextn
from replayer import Replayer, compile_bundle, rows_of
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.engine import Engine
from strata_runtime.request import Request

TOKENS = [int(t) for t in np.random.default_rng(8).integers(0, 133, 100)]
LAYER = "1/cells.k.2"  # the drafter's keys, behind two layers, on the last of two stages


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two stages, three slots, an MTP layer of random weights."""
    folder = tmp_path_factory.mktemp("bundle")
    model = write_tiny_llama(folder / "tiny.gguf")
    layer = write_tiny_nextn(folder / "layer.gguf")
    draft = f"{{kind: mtp, model: {layer}, depth: 3}}"
    return compile_bundle(folder, model, stages=2, slots=3, groups=2, context=128, draft=draft)


@pytest.fixture
def replayer(bundle: Bundle) -> Replayer:
    """NaN in everything that is not a weight."""
    return Replayer(bundle, poison=0xFF)


@pytest.mark.parametrize("chunk", [1, 7, 32, 128])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_prompts_and_windows_leave_the_same(replayer: Replayer, chunk: int, width: int) -> None:
    """Of 90 tokens, cells 0..88 of the drafter, and all others; the next row will fill in 89."""
    replayer.prompt(0, TOKENS[:90], chunk)
    replayer.decode(1, TOKENS[:90], width)
    assert {LAYER, "1/cells.v.2", "1/cells.hidden"} <= replayer.cells(0, 1).keys()
    assert replayer.cells(0, 89) == replayer.cells(1, 89)
    keys = np.frombuffer(replayer.cells(1, 89)[LAYER], np.float16)
    assert np.isfinite(keys).all() and keys.any()
    behind = replayer.cells(1, 90)[LAYER][len(replayer.cells(1, 89)[LAYER]) :]
    assert set(behind) == {0xFF}


def test_a_copied_slot_drafts_alike(replayer: Replayer) -> None:
    """Hidden states and the drafter's cells go with the others."""
    replayer.prompt(0, TOKENS[:70], 32)
    rows = [replace(r, state_in=0) for r in rows_of(2, 0, TOKENS[:70])]
    replayer.run(f"copy.r{replayer.bundle.manifest.shape.prompt_sizes[-1]}", rows)
    assert replayer.cells(0, 69) == replayer.cells(2, 69)


def test_cancels_beside_chains(bundle: Bundle) -> None:
    """Requests that go at any moment, chains in flight or not, leave the others' texts alone."""
    draft = open_draft(bundle, bundle.folder)
    device = CpuDevice(bundle, open_weights(bundle, bundle.folder), threads=1, draft=draft)
    rng = random.Random(6)
    prompts = [tuple(rng.choices(range(133), k=rng.randint(1, 40))) for _ in range(30)]
    alone = Engine(bundle.manifest, device)
    texts = {}
    for prompt in prompts:
        alone.submit(Request(0, prompt, 24))
        texts[prompt] = [token for update in alone.updates() for token in update.tokens]
    engine = Engine(bundle.manifest, device)
    numbers = {engine.submit(Request(0, prompt, 24)): prompt for prompt in prompts}
    found: dict[int, list[int]] = {number: [] for number in numbers}
    cancelled = set()
    while engine.busy:
        for update in engine.pump():
            found[update.request_id] += update.tokens
        if rng.random() < 0.04 and len(cancelled) < 12:
            number = rng.choice([*numbers])
            cancelled.add(number)
            engine.cancel(number)
    device.close()
    assert len(cancelled) > 5
    kept = numbers.keys() - cancelled
    assert {n: found[n] for n in kept} == {n: texts[numbers[n]] for n in kept}
