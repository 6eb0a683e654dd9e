"""An MTP layer in the model's own file or beside it: the same drafts and texts, clear faults."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_case import compile_seen
from compile_case import HEAD, compile_case
from gguf_changes import norms, write_changed
from gguf_maker import write_tiny_llama, write_tiny_nextn
from replayer import compile_bundle
from strata_runtime.bundle_load import Bundle, load_bundle, open_draft, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.engine import Engine
from strata_runtime.gguf_file import GgufFile
from strata_runtime.launch import Sampling
from strata_runtime.options import VARIABLES
from strata_runtime.request import Request

Capture = pytest.CaptureFixture[str]
VOCAB, LENGTH = 133, 24
#: Tensors of the layer that have the trunk's values: with them and without, one drafter.
EMBED, HEAD_ROWS = "blk.2.nextn.embed_tokens.weight", "blk.2.nextn.shared_head_head.weight"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No STRATA_* variable, and no wait for the disk."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "fsync", lambda file: None)


class Listener(CpuDevice):
    """Keeps the words of every chain: counts, drafts, probabilities."""

    heard: list[bytes]

    def drafts(self, context: int) -> np.ndarray:
        """What was proposed, written down."""
        words = super().drafts(context)
        self.heard.append(words.tobytes())
        return words


def decode(bundle: Bundle) -> tuple[list[bytes], list[tuple[list[int], str | None]]]:
    """Every chain's words; tokens and logits hash of a greedy and a sampled text, one by one."""
    weights, draft = open_weights(bundle, bundle.folder), open_draft(bundle, bundle.folder)
    device = Listener(bundle, weights, threads=1, draft=draft)
    device.heard = []
    for name, arena in bundle.manifest.memory["cpu"].arenas.items():
        if arena.role in ("cells", "contexts", "scratch"):
            device.arenas.arena(name).fill_(0xFF)
    texts = []
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=3)):
        engine = Engine(bundle.manifest, device)
        engine.submit(Request(0, tuple(range(9, 50)), LENGTH, sampling=sampling))
        updates = list(engine.updates())
        tokens = [token for update in updates for token in update.tokens]
        texts.append((tokens, updates[-1].logits_hash))
    device.close()
    return device.heard, texts


@pytest.mark.parametrize("chain", ["depth: 3", "depth: 7, vocab: 100"])
@pytest.mark.parametrize("stages", [1, 2])
def test_one_file_and_two_decode_alike(tmp_path: Path, chain: str, stages: int) -> None:
    """Tokens, logits hashes, drafts and their probabilities, bit for bit; tables of its own too."""
    one = write_tiny_llama(tmp_path / "one.gguf", nextn_seed=1)
    two, layer = write_tiny_llama(tmp_path / "two.gguf"), write_tiny_nextn(tmp_path / "layer.gguf")
    tables = dict.fromkeys((EMBED, HEAD_ROWS), GgufFile.open(two).dequantize("token_embd.weight"))
    own = write_changed(tmp_path / "own.gguf", tensors=tables, nextn_seed=1)
    beside = write_changed(tmp_path / "beside.gguf", tensors=tables, write=write_tiny_nextn)
    cases = {
        "one": (one, ""),
        "two": (two, f", model: {layer}"),
        "own": (own, ""),
        "beside": (two, f", model: {beside}"),
    }
    found = {}
    for name, (model, file) in cases.items():
        keys = {"stages": stages, "context": 128, "prompt": "{sizes: [32]}"}
        draft = f"{{kind: mtp, {chain}{file}}}"
        found[name] = decode(compile_bundle(tmp_path / name, model, **keys, draft=draft))
    heard, texts = found["one"]
    assert len(heard) > LENGTH and all(tokens and hashed for tokens, hashed in texts)
    assert all(other == (heard, texts) for other in found.values())


@pytest.mark.parametrize("draft", ["none", "ngram", "mtp"])
def test_a_text_is_the_same_whoever_drafts(tmp_path: Path, draft: str) -> None:
    """A file with a layer that is not used is the model without one."""
    plain, one = tmp_path / "plain.gguf", tmp_path / "one.gguf"
    write_tiny_llama(plain)
    write_tiny_llama(one, nextn_seed=1)
    keys = {"context": 128, "prompt": "{sizes: [32]}"}
    _, texts = decode(compile_bundle(tmp_path / "a", plain, **keys))
    heard, same = decode(compile_bundle(tmp_path / "b", one, **keys, draft=draft))
    assert same == texts and bool(heard) == (draft == "mtp")


@pytest.mark.parametrize(("depth", "auto", "steps"), [("auto", True, 7), ("2", False, 2)])
@pytest.mark.parametrize("kind", ["mtp", "ngram"])
def test_the_bundle_says_who_chooses_the_depth(
    tmp_path: Path, kind: str, depth: str, auto: bool, steps: int
) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf", nextn_seed=1)
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"{HEAD}prompt: {{sizes: [8]}}\ndraft: {{kind: {kind}, depth: {depth}}}\n")
    bundle = load_bundle(compile_case(plan, tmp_path / "bundle"))
    shape = bundle.manifest.shape
    assert (shape.drafter, shape.draft_depth, shape.draft_auto) == (kind, steps, auto)
    chains = [p for p in bundle.programs.values() if p.kind == "draft"]
    assert len(chains) == (steps if kind == "mtp" else 0)


LAYER = write_tiny_nextn


def layer(**tiny: int) -> Callable[[Path], object]:
    """Writes a layer of these numbers."""
    return lambda path: write_tiny_nextn(path, **tiny)  # type: ignore[arg-type]


#: What the drafter's file is, what else the draft says, and what the line says.
FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "missing": (lambda path: None, "", "layer.gguf: cannot be read: No such file"),
    "a folder": (Path.mkdir, "", "layer.gguf: is a folder, not a GGUF file"),
    "text": (lambda path: path.write_text("x" * 99), "", "layer.gguf: not a GGUF file"),
    "width": (layer(embedding=24), "", "layer.gguf: embedding_length is 24, the model's is 48"),
    "vocabulary": (layer(vocab=99), "", "vocab_size is 99, the model's is 133: of another model"),
    "layers": (layer(layers=3), "", "layers before it is 3, the model's is 2: of another model"),
    "heads": (layer(heads=8), "", "rope.dimension_count is 6, the model's is 12"),
    "a model": (write_tiny_llama, "", "not a file of one MTP layer"),
    "a tensor": (
        lambda path: write_changed(path, tensors={"blk.2.attn_q.weight": None}, write=LAYER),
        "", "tensor blk.2.attn_q.weight is missing",
    ),
    "a shape": (
        lambda path: write_changed(path, tensors={"blk.2.attn_q.weight": norms(9)}, write=LAYER),
        "", "tensor blk.2.attn_q.weight is 9, expected 48 × 48",
    ),
    "vocab": (layer(), ", vocab: 134", "plan.yaml:2: draft.vocab: 134 tokens are beyond"),
    "min_p": (layer(), ", min_p: 1.01", "plan.yaml:2: draft.min_p: must be a probability"),
    "depth 0": (layer(), ", depth: 0", "plan.yaml:2: draft.depth: must be between 1 and 7"),
    "depth 8": (layer(), ", depth: 8", "plan.yaml:2: draft.depth: must be between 1 and 7"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_drafter_that_does_not_fit(capsys: Capture, tmp_path: Path, case: str) -> None:
    """One line, exit code 2, no bundle."""
    make, more, words = FAULTS[case]
    write_tiny_llama(tmp_path / "tiny.gguf")
    make(tmp_path / "layer.gguf")
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"{HEAD}draft: {{kind: mtp, model: layer.gguf{more}}}\n")
    line = compile_seen(capsys, plan, "-o", tmp_path / "bundle").fault()
    assert line.startswith(str(tmp_path)) and words in line, line
    assert len(line) < 300 and not (tmp_path / "bundle").exists()


def test_a_model_without_a_layer(capsys: Capture, tmp_path: Path) -> None:
    """The plan's line, and what to write."""
    write_tiny_llama(tmp_path / "tiny.gguf")
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"{HEAD}slots: 1\ndraft: {{kind: mtp}}\n")
    line = compile_seen(capsys, plan, "-o", tmp_path / "bundle").fault()
    advice = "name its file with 'model: FILE', or write 'kind: ngram'"
    assert line == f"{plan}:3: draft: the model's file has no MTP layer: {advice}"
