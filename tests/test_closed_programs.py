"""A program runs from its JSON, the arenas and the bytes of one table, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gguf_maker import write_tiny_llama
from replayer import Replayer, compile_bundle, rows_of
from strata_kernels.table import LAYOUT
from strata_runtime.bundle_load import Bundle
from strata_runtime.launch import Launch, Row, Segment, Table
from strata_runtime.records import encode

SCRIPT = Path(__file__).parent / "helpers" / "replay_process.py"
PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, 133, 70)]
ROWS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def replayer(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Replayer:
    """Slots 0 and 2 have read the same prompt, slot 1 another."""
    bundle = compile_bundle(tmp_path_factory.mktemp("b"), model, slots=4, groups=3, context=128)
    replayer = Replayer(bundle, poison=0xFF)
    for slot, tokens in ((0, PROMPT), (2, PROMPT), (1, PROMPT[::-1])):
        replayer.prompt(slot, tokens[:-1], 32)
    return replayer


def save(replayer: Replayer, folder: Path) -> None:
    """Everything that the other process gets, but for the table."""
    manifest = replayer.bundle.manifest
    program = replayer.bundle.programs[0, f"exec.r{ROWS}"]
    (folder / "program.json").write_text(json.dumps(encode(program)))
    (folder / "memory.json").write_text(json.dumps(encode(manifest.memory["cpu"])))
    for name in manifest.memory["cpu"].arenas:
        replayer.arenas.arena(name).numpy().tofile(folder / name.replace("/", "."))


def table_bytes(replayer: Replayer, rows: list[Row], context: int) -> bytes:
    """The table of a window; each row is a segment of its own."""
    segments = tuple(Segment(r.slot, 1, i, 1) for i, r in enumerate(rows))
    launch = Launch(9, 0, f"exec.r{ROWS}", Table("exec", context, tuple(rows), segments))
    words = np.zeros(LAYOUT.words(ROWS), np.int32)
    replayer.writer.write(launch, ROWS, words)
    return words.tobytes()


def run(folder: Path, table: bytes) -> np.ndarray:
    """The logits' bits that the other process finds, (8, vocab)."""
    (folder / "table").write_bytes(table)
    command = [sys.executable, str(SCRIPT), str(folder), str(folder / "table")]
    done = subprocess.run(command, capture_output=True, check=True, cwd=folder)
    return np.frombuffer(done.stdout, np.int32).reshape(8, -1)


def test_another_process_moves_a_row_by_its_table_alone(replayer: Replayer, tmp_path: Path) -> None:
    """Slot, context and place change in the table's bytes only; the logits' bytes stay."""
    save(replayer, tmp_path)
    end = len(PROMPT) - 1
    company = [*rows_of(1, 5, PROMPT[5:6], 1, 1), *rows_of(3, 0, PROMPT[:1], 2, 2)]
    first = table_bytes(replayer, [*rows_of(0, end, PROMPT[end:]), *company], 0)
    other = [*rows_of(3, 0, [7], 0, 16), *rows_of(1, 9, [3], 1, 17)]
    second = table_bytes(replayer, [*other, *rows_of(2, end, PROMPT[end:], 2, 18)], 2)
    assert first != second
    here, there = run(tmp_path, first), run(tmp_path, second)
    assert (here[0] == there[2]).all()
    assert np.isfinite(here[0].view(np.float32)).all() and here[0].any()
    assert (here[0] != there[0]).any()
    assert (replayer.window(rows_of(0, end, PROMPT[end:]))[0] == here[0]).all()


def calls_of(bundle: Bundle) -> dict[tuple[int, str], list[tuple[str, object]]]:
    """Every program's kernels with their params, and where scratch lies."""
    return {
        name: [
            (c.entry, [(a, v.offset, v.dtype, v.shape[1:]) for a, v in c.args.items()])
            for c in program.calls
        ]
        for name, program in bundle.programs.items()
    }


def test_programs_do_not_depend_on_slots_and_groups(model: Path, tmp_path: Path) -> None:
    """1 slot in 1 group and 16 in 4 have the same programs, calls, entries and places."""
    small = compile_bundle(tmp_path / "small", model, slots=1, groups=1, context=128)
    large = compile_bundle(tmp_path / "large", model, slots=16, groups=4, context=128)
    assert calls_of(small) == calls_of(large)
    assert len(small.programs) == 8 + 3 + 1
