"""copy: a slot goes on from another's cells as if it had read them itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gguf_maker import write_tiny_llama
from replayer import Replayer, compile_bundle, rows_of

TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 133, 100)]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 99])
def test_a_copied_slot_goes_on_alike(stages: int, length: int, tmp_path: Path) -> None:
    """Cells of all sorts are equal bytes, no other cell changes, and so are the next logits."""
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    bundle = compile_bundle(tmp_path, model, stages=stages, slots=3, groups=1, context=128)
    replayer = Replayer(bundle, poison=0xFF)
    replayer.prompt(0, TOKENS[:length], 32)
    before = replayer.cells(1, 128)
    rows = [replace(r, state_in=0) for r in rows_of(2, 0, TOKENS[:length])]
    replayer.run(f"copy.r{bundle.manifest.shape.prompt_sizes[-1]}", rows)
    assert replayer.cells(2, length) == replayer.cells(0, length)
    assert replayer.cells(1, 128) == before
    assert set(replayer.cells(2, 128)["0/cells.k.0"][length * 2 * 12 * 2 :]) == {0xFF}
    here = replayer.window(rows_of(0, length, TOKENS[length : length + 1]))
    there = replayer.window(rows_of(2, length, TOKENS[length : length + 1]))
    assert (here == there).all() and here.any()
