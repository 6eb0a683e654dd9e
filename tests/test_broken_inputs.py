"""Broken model and plan files as a user meets them: one line and exit code 2, or a bundle."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_case import compile_seen
from compile_case import HEAD, write_case
from gguf_changes import behind, norms, put, put_u64, renamed, write_changed
from gguf_maker import write_tiny_llama
from strata_runtime.bundle_load import load_bundle
from strata_runtime.gguf_file import GgufFile
from strata_runtime.options import VARIABLES

Capture = pytest.CaptureFixture[str]
LINES = "prompt: {sizes: [8]}\n"
HUGE = 1 << 60
Q, K, LAST = (f"blk.0.{name}.weight" for name in ("attn_q", "attn_k", "ffn_down"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No STRATA_* variable, and no wait for the disk."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_case(tmp_path, LINES, layers=1, embedding=16, heads=2, kv_heads=1, ff=24)


def fault(capsys: Capture, plan: Path) -> str:
    """The line about this plan; there is no bundle and nothing else new."""
    before = {p.name for p in plan.parent.iterdir()}
    line = compile_seen(capsys, plan, "-o", plan.parent / "bundle").fault()
    assert {p.name for p in plan.parent.iterdir()} == before
    return line


def overwrite(path: Path, data: bytes) -> None:
    """Put new contents in a new file: an older one may still be mapped."""
    path.unlink()
    path.write_bytes(data)


def damaged(rng: random.Random, data: bytes, header: int) -> bytes:
    """One to three bits flipped, more than half of them in the header; a fifth is also cut off."""
    bad = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(header if rng.random() < 0.6 else len(bad))
        bad[at] ^= 1 << rng.randrange(8)
    return bytes(bad[: rng.randrange(len(bad))] if rng.random() < 0.2 else bad)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_ends_in_a_line_or_a_bundle(capsys: Capture, plan: Path, seed: int) -> None:
    """250 of 1,000 damaged files."""
    model, bundle, rng = plan.parent / "tiny.gguf", plan.parent / "bundle", random.Random(seed)
    data, header = model.read_bytes(), GgufFile.open(model).header.data_start
    refused = 0
    for _ in range(250):
        overwrite(model, damaged(rng, data, header))
        seen = compile_seen(capsys, plan, "-o", bundle)
        if seen.code:
            assert seen.fault().startswith(str(model))
            refused += 1
        else:
            seen.success(bundle)
            assert load_bundle(bundle).manifest.model.bytes == model.stat().st_size
    assert 50 < refused < 240
    assert {p.name for p in plan.parent.iterdir()} == {"plan.yaml", "tiny.gguf", "bundle"}


Damage = Callable[[bytes], bytes]

#: What a damaged file is told; the bytes are those of the tiny model.
DAMAGED: dict[str, tuple[Damage, str]] = {
    "empty": (lambda d: b"", "the file is empty"),
    "magic": (lambda d: put(d, 0, b"GGML"), "not a GGUF file"),
    "a page of the web": (lambda d: b"<!DOCTYPE html>\n" * 40, "not a GGUF file"),
    "version": (lambda d: put(d, 4, b"\7\0\0\0"), "version 7"),
    "big endian": (lambda d: put(d, 4, b"\0\0\0\3"), "big-endian"),
    "cut in the first bytes": (lambda d: d[:20], "cut off"),
    "cut in the keys": (lambda d: d[:200], "more than fit"),
    "cut in the tensors": (lambda d: d[: behind(d, LAST) + 9], "cut off"),
    "cut in the data": (lambda d: d[:-100], "cut off"),
    "tensor count": (lambda d: put_u64(d, 8, HUGE), f"claims {HUGE} tensors"),
    "one tensor too many": (lambda d: put_u64(d, 8, d[8] + 1), "tensor"),
    "key count": (lambda d: put_u64(d, 16, HUGE), f"claims {HUGE} metadata keys"),
    "one key too many": (lambda d: put_u64(d, 16, d[16] + 1), "damaged"),
    "length of a string": (lambda d: put_u64(d, 24, HUGE), f"needs {HUGE} bytes"),
    "length of a value": (
        lambda d: put_u64(d, behind(d, "general.architecture") + 4, HUGE),
        f"needs {HUGE} bytes",
    ),
    "type of a value": (
        lambda d: put(d, behind(d, "llama.block_count"), b"\x63\0\0\0"),
        "unknown type 99",
    ),
    "number as a string": (
        lambda d: put(d, behind(d, "llama.block_count"), b"\x06\0\0\0"),
        "llama.block_count",
    ),
    "text of a key": (
        lambda d: put(d, behind(d, "llama.block_count") - 3, b"\xff"), "not UTF-8",
    ),
    "key twice": (
        lambda d: renamed(d, "llama.context_length", "general.architecture"), "stands twice",
    ),
    "tensor twice": (lambda d: renamed(d, K, Q), "stands twice"),
    "type of a tensor": (lambda d: put(d, behind(d, Q) + 20, b"\xc8\0\0\0"), "unknown type 200"),
    "offset not aligned": (lambda d: put_u64(d, behind(d, Q) + 24, 1), "offset 1"),
    "offset past the end": (lambda d: put_u64(d, behind(d, Q) + 24, 1 << 40), "cut off"),
    "offset of another": (lambda d: put_u64(d, behind(d, Q) + 24, 0), "overlap"),
    "nine dimensions": (lambda d: put(d, behind(d, Q), b"\x09\0\0\0"), "has 9 dimensions"),
    "no columns": (lambda d: put_u64(d, behind(d, Q) + 4, 0), "dimension that is zero"),
    "elements beyond 64 bits": (lambda d: put_u64(d, behind(d, Q) + 4, HUGE << 3), "too many"),
    "fewer columns": (lambda d: put_u64(d, behind(d, Q) + 4, 8), "is 16 × 8, expected 16 × 16"),
    "architecture": (
        lambda d: put(d, behind(d, "general.architecture") + 12, b"LLAMA"),
        "'LLAMA' is not supported (llama)",
    ),
    "architecture missing": (
        lambda d: renamed(d, "general.architecture", "general.architectvre"),
        "general.architecture",
    ),
    "key missing": (
        lambda d: renamed(d, "llama.block_count", "llama.block_coint"), "block_count' is missing",
    ),
    "tensor missing": (lambda d: renamed(d, Q, "blk.0.attn_x.weight"), "attn_q.weight"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_model(capsys: Capture, plan: Path, case: str) -> None:
    damage, words = DAMAGED[case]
    model = plan.parent / "tiny.gguf"
    data = model.read_bytes()
    overwrite(model, damage(data))
    assert model.read_bytes() != data
    line = fault(capsys, plan)
    assert line.startswith(f"{model}: ") and words in line
    assert len(line) < 400


@pytest.mark.parametrize("character", ["\n", "\x1b", "\u2028"])
def test_names_in_a_file_cannot_steer_the_terminal(
    capsys: Capture, plan: Path, character: str
) -> None:
    name = f"a{character}[31mb"
    write_changed(plan.parent / "tiny.gguf", tensors={name: norms(1)})
    assert "is unknown" in fault(capsys, plan)
    write_changed(plan.parent / "tiny.gguf", {f"llama.rope.{name}": 1})
    assert "is set" in fault(capsys, plan)


def test_weights_that_are_no_numbers_are_the_models_own(capsys: Capture, plan: Path) -> None:
    """The compiler reads shapes only: NaN in a weight is not its matter."""
    nan = np.full((133, 48), np.nan, np.float32)
    write_changed(plan.parent / "tiny.gguf", tensors={"token_embd.weight": nan})
    bundle = plan.parent / "bundle"
    compile_seen(capsys, plan, "-o", bundle).success(bundle)


def test_a_model_of_one_position(capsys: Capture, plan: Path) -> None:
    """A plan may not ask for it either: one position alone cannot be decoded."""
    write_changed(plan.parent / "tiny.gguf", {"llama.context_length": 1})
    assert "context" in fault(capsys, plan)


@pytest.mark.parametrize("context", [2, 3, 4, 63, 64, 65])
def test_short_contexts_compile(capsys: Capture, plan: Path, context: int) -> None:
    plan.write_text(f"{HEAD}{LINES}context: {context}\n")
    bundle = plan.parent / "bundle"
    compile_seen(capsys, plan, "-o", bundle).success(bundle)
    assert load_bundle(bundle).manifest.shape.context == context


MODEL = HEAD.encode()

#: What a broken plan is told.
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ":1: the plan is empty"),
    "not text": (b"\x7fELF\x02\x01\x01" + bytes(64), "not a text file"),
    "UTF-16": ("model: tiny.gguf\n".encode("utf-16"), "not UTF-8"),
    "a model file": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "not a text file"),
    "too large": (b"#" * (1 << 17), "larger than 64 KiB"),
    "a list": (b"- model: tiny.gguf\n", ":1: must be a mapping"),
    "tab": (MODEL + b"\tslots: 2\n", ":2: not valid YAML"),
    "unclosed": (MODEL + b"targets: [cpu\n", "not valid YAML"),
    "python object": (MODEL + b"kv: !!python/object:os.system x\n", ":2: kv: unknown tag"),
    "bomb": (b"a: &a [x, x]\nb: &b [*a, *a]\n", ":1: a: anchors and aliases"),
    "deep": (MODEL + b"kv: " + b"[" * 9000, ":2: kv"),
    "two documents": (MODEL + b"---\n" + MODEL, ":2: a plan is one YAML document"),
    "key twice": (MODEL + b"slots: 1\nslots: 1\n", ":3: slots: the key appears twice"),
    "unknown key": (MODEL + b"slot: 1\n", ":2: slot: unknown key; did you mean 'slots'?"),
    "escapes": (MODEL + b'"\\e[31m": 1\n', ":2: '\\x1b[31m': unknown key"),
    "no model": (b"slots: 2\n", ":1: model: is missing"),
    "model is a number": (b"model: 7\n", ":1: model: must be a text"),
    "model is a folder": (b"model: .\n", "is a folder, not a GGUF file"),
    "model is the plan": (b"model: plan.yaml\n", "not a GGUF file"),
    "model is a device": (b"model: /dev/null\n", "is not a regular file"),
    "model with a long name": (b"model: " + b"m" * 300 + b"\n", "name too long"),
    "model of nobody's home": (b"model: ~nobody-of-this-name/x.gguf\n", "~nobody-of-this-name"),
    "package without file": (b"model: package:numpy\n", "package:NAME/FILE"),
    "package outside": (b"model: package:numpy/../../x\n", "package:NAME/FILE"),
    "package without the file": (b"model: package:numpy/none.gguf\n", "package:numpy/none.gguf"),
    "package with a dot": (b"model: package:a.b/c.gguf\n", "package:a.b/c.gguf"),
    "package with a long name": (b"model: package:numpy/" + b"m" * 300 + b"\n", "package:numpy/m"),
    "package of code": (b"model: package:numpy/__init__.py\n", "not a GGUF file"),
    "slots": (MODEL + b"slots: -1\n", ":2: slots: must be between"),
    "huge number": (MODEL + b"slots: " + b"9" * 9000 + b"\n", ":2: slots: must be between"),
    "groups": (MODEL + b"groups: 2\n", ":2: groups: 2 groups cannot be filled"),
    "context": (MODEL + b"context: 513\n", ":2: context: 513 tokens are beyond"),
    "stages": (MODEL + b"stages: 2\n", ":2: stages: 2 stages need as many layers"),
    "layers": (MODEL + b"stages:\n - layers: 0-1\n", ":3: stages[0].layers: no layer 1"),
    "kv": (MODEL + b"kv: int8\n", ":2: kv: int8 is not in this version"),
    "drafts": (MODEL + b"draft: mtp\n", ":2: draft: the model's file has no MTP layer"),
    "depth": (MODEL + b"draft: {kind: ngram, depth: 8}\n", ":2: draft.depth: must be between"),
    "draft's file": (MODEL + b"draft: {kind: mtp, model: x.gguf}\n", "/x.gguf: cannot be read"),
    "draft of itself": (
        MODEL + b"draft: {kind: mtp, model: tiny.gguf}\n", ":2: draft: the model's file has no",
    ),
    "targets": (MODEL + b"targets: [sm_91]\n", ":2: targets[0]: "),
    "memory": (MODEL + b"stages: [{layers: 0, memory: 1KiB}]\n", "MiB short"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_plan(capsys: Capture, plan: Path, case: str) -> None:
    data, words = BROKEN[case]
    plan.write_bytes(data)
    line = fault(capsys, plan)
    assert words.lower() in line.lower(), line
    assert len(line) < 1000


@pytest.mark.parametrize("seed", range(2))
def test_random_plans_end_in_a_line_or_a_bundle(capsys: Capture, plan: Path, seed: int) -> None:
    """100 plans with one to three bytes replaced, removed or added."""
    rng, bundle = random.Random(seed), plan.parent / "bundle"
    sound = HEAD + "stages: [{layers: 0-0, memory: 1GiB}]\nslots: 2\nkv: f16\n" + LINES
    refused = 0
    for _ in range(100):
        data = bytearray(sound.encode())
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.choice([b"", b"0", b":", b"\n", b"\xc3", b"~"])
        plan.write_bytes(data)
        seen = compile_seen(capsys, plan, "-o", bundle)
        if seen.code:
            assert seen.fault()
            refused += 1
        else:
            seen.success(bundle)
    assert 50 < refused < 100


def test_a_plan_that_is_no_file(capsys: Capture, plan: Path) -> None:
    plan.unlink()
    assert fault(capsys, plan) == f"{plan}: no such file"
    plan.mkdir()
    assert fault(capsys, plan) == f"{plan}: is a folder, not a plan"


def test_a_model_that_cannot_be_read(
    capsys: Capture, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def refuse(self: Path, mode: str = "r") -> object:
        if self.suffix == ".gguf":
            raise PermissionError(13, "Permission denied")
        return real(self, mode)

    monkeypatch.setattr(Path, "open", refuse)
    assert fault(capsys, plan) == f"{plan.parent}/tiny.gguf: cannot be read: Permission denied"


def test_the_tiny_model_itself_is_sound(capsys: Capture, plan: Path) -> None:
    """Every case above starts from a file that compiles, also with other sizes."""
    bundle = plan.parent / "bundle"
    compile_seen(capsys, plan, "-o", bundle).success(bundle)
    write_tiny_llama(plan.parent / "tiny.gguf", with_vocab=True)
    compile_seen(capsys, plan, "-o", bundle).success(bundle)
    assert load_bundle(bundle).manifest.model.layers == 2
