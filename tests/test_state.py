"""Layers with state: prompts, windows and commits leave what reading row by row leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gguf_maker import write_tiny_llama
from recurrent import as_recurrent, install
from replayer import Replayer, compile_bundle, rows_of
from strata_compile.errors import MemoryPlanError
from strata_runtime.bundle_load import Bundle
from strata_runtime.launch import Row
from token_by_token import states

VOCAB, NAN = 133, 0xFF
TOKENS = np.random.default_rng(3).integers(0, VOCAB, 90).tolist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    """Four layers in two stages; layer 2 alone has no state."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        yield compiled(tmp_path_factory.mktemp("state"), patch)


def compiled(folder: Path, patch: pytest.MonkeyPatch, **keys: object) -> Bundle:
    """Four slots, so that a window may be of several."""
    model = write_tiny_llama(folder / "tiny.gguf", layers=4, vocab=VOCAB)
    with patch.context() as here:
        as_recurrent(here)
        return compile_bundle(
            folder, model, **{"stages": 2, "slots": 4, "groups": 2, "context": 128, **keys}
        )


def state_of(replayer: Replayer, slot: int) -> dict[str, bytes]:
    """A slot's states, by layer."""
    manifest = replayer.bundle.manifest
    return {
        name: state
        for stage in range(replayer.stages)
        for name, state in states(replayer.arenas, manifest, stage, slot).items()
    }


def row_by_row(bundle: Bundle, count: int, slot: int = 0) -> Replayer:
    """TOKENS read in windows of one row, each committed."""
    replayer = Replayer(bundle, NAN)
    for position, token in enumerate(TOKENS[:count]):
        commit(replayer, read(replayer, [(slot, position, [token])]))
    return replayer


def read(replayer: Replayer, segments: list[tuple[int, int, list[int]]], context: int = 0):  # type: ignore[no-untyped-def]
    """An exec of (slot, position, tokens); its rows."""
    rows: list[Row] = []
    for slot, position, tokens in segments:
        rows += rows_of(slot, position, tokens, first=len(rows))
    rows = [replace(row, saved_row=8 * context + i) for i, row in enumerate(rows)]
    replayer.run(f"exec.r{len(rows)}", rows, context)
    return rows


def commit(replayer: Replayer, rows: list[Row], kept: dict[int, int] | None = None) -> None:
    """A commit of the first so many rows of each slot, all of them where `kept` is not given."""
    mine = [r for r in rows if kept is None or r.index < kept.get(r.slot, 0)]
    firsts = {r.slot: i for i, r in reversed([*enumerate(mine)])}
    mine = [replace(r, first_row=firsts[r.slot]) for r in mine]
    replayer.run(f"commit.r{len(mine)}", mine)


def test_only_layers_that_have_state_are_committed(bundle: Bundle) -> None:
    """A call for each; exec writes no state."""
    commits = [bundle.programs[stage, "commit.r3"] for stage in (0, 1)]
    assert [[c.kernel for c in p.calls] for p in commits] == [
        ["take_table", *["recurrent_commit"] * n] for n in (2, 1)
    ]
    before = row_by_row(bundle, 5)
    wanted = state_of(before, 0)
    assert len(wanted) == 3
    read(before, [(0, 5, TOKENS[5:13])])
    assert state_of(before, 0) == wanted


@pytest.mark.parametrize("kept", range(1, 9))
def test_a_commit_of_some_rows_is_reading_them(bundle: Bundle, kept: int) -> None:
    """The kept rows alone, at once or the first at once and the others one by one."""
    wanted = state_of(row_by_row(bundle, 5 + kept), 0)
    at_once, one_by_one = row_by_row(bundle, 5), row_by_row(bundle, 5)
    commit(at_once, read(at_once, [(0, 5, TOKENS[5:13])]), {0: kept})
    assert state_of(at_once, 0) == wanted
    rows = read(one_by_one, [(0, 5, TOKENS[5:13])])
    commit(one_by_one, rows, {0: 1})
    for row in rows[1:kept]:
        one_by_one.run("commit_row.r1", [replace(row, first_row=0, index=0)])
    assert state_of(one_by_one, 0) == wanted


def test_slots_of_a_window_are_apart(bundle: Bundle) -> None:
    """Three slots with 1, 3 and 2 rows, of which 1, 2 and 0 are kept; two contexts at a time."""
    replayer = row_by_row(bundle, 4, slot=1)
    began = state_of(replayer, 1)
    rows = read(replayer, [(3, 0, TOKENS[:1]), (1, 4, TOKENS[4:7]), (0, 0, TOKENS[5:7])])
    read(replayer, [(2, 0, TOKENS[9:12])], context=1)  # saves beside
    commit(replayer, rows, {3: 1, 1: 2})
    assert state_of(replayer, 3) == state_of(row_by_row(bundle, 1), 0)
    assert state_of(replayer, 1) == state_of(row_by_row(bundle, 6), 0) != began
    assert all(np.isnan(np.frombuffer(s, np.float32)).all() for s in state_of(replayer, 0).values())


@pytest.mark.parametrize("chunk", [1, 5, 32, 90])
def test_a_prompt_is_reading_row_by_row(bundle: Bundle, chunk: int) -> None:
    """Chunks of any length, which commit themselves; then a window goes on from there."""
    reader, alone = Replayer(bundle, NAN), row_by_row(bundle, 90)
    reader.prompt(0, TOKENS, chunk)
    assert state_of(reader, 0) == state_of(alone, 0)
    for each in (reader, alone):
        read(each, [(0, 90, [7, 8])])
    found, wanted = (each.logits("exec.r2")[:2].numpy().tobytes() for each in (reader, alone))
    assert found == wanted


def test_a_slot_begins_anew_at_position_0(bundle: Bundle) -> None:
    """Whatever state the text before left."""
    replayer = row_by_row(bundle, 20)
    commit(replayer, read(replayer, [(0, 0, TOKENS[:3])]))
    assert state_of(replayer, 0) == state_of(row_by_row(bundle, 3), 0)
    replayer.prompt(0, TOKENS[:40], 32)
    assert state_of(replayer, 0) == state_of(row_by_row(bundle, 40), 0)


def test_a_copy_has_cells_and_states(bundle: Bundle) -> None:
    """The copy goes on as the original does."""
    replayer = row_by_row(bundle, 20)
    size = bundle.manifest.shape.prompt_sizes[-1]
    rows = [replace(r, state_in=0, state_out=2) for r in rows_of(2, 0, TOKENS[:20])]
    replayer.run(f"copy.r{size}", rows)
    assert state_of(replayer, 2) == state_of(replayer, 0)
    assert {**replayer.cells(2, 20)} == {**replayer.cells(0, 20)}
    logits = []
    for slot in (0, 2):
        read(replayer, [(slot, 20, [1, 2, 3])])
        logits.append(replayer.logits("exec.r3")[:3].numpy().tobytes())
    assert logits[0] == logits[1]


def test_states_have_an_arena_and_count_as_memory(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One state of each slot and layer; too little memory names them."""
    plan = bundle.manifest.memory["cpu"]
    states = [b for b in plan.buffers.values() if plan.arenas[b.arena].role == "states"]
    assert [b.shape for b in states] == [(4, 48)] * 3
    install(monkeypatch)
    stages = "[{layers: 0-1, memory: 100KiB}, {layers: 2-3}]"
    with pytest.raises(MemoryPlanError, match="states 0 MiB"):
        compiled(tmp_path, monkeypatch, stages=stages)
