"""The drafter's file when a bundle is loaded: where it is found, what is said where it is not."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from compile_case import compile_case, write_case
from gguf_maker import write_tiny_llama, write_tiny_nextn
from strata_runtime.bundle_format import EMBEDDED_DRAFT, EMBEDDED_MODEL
from strata_runtime.bundle_load import Bundle, load_bundle, open_draft, open_weights
from strata_runtime.errors import BundleError, ModelError
from strata_runtime.gguf_file import GgufFile

LINES = "context: 128\nprompt: {sizes: [8]}\ndraft: {kind: mtp, model: layer.gguf, depth: 1}\n"


def compiled(folder: Path, embed: bool = False) -> Bundle:
    """A bundle of a model and a layer that lie in `folder`."""
    plan = write_case(folder, LINES)
    write_tiny_nextn(folder / "layer.gguf")
    return load_bundle(compile_case(plan, folder / "bundle", embed))


def drafter(bundle: Bundle) -> GgufFile:
    """Its file; the cache is empty."""
    found = open_draft(bundle, bundle.folder.parent / "cache")
    assert found is not None
    return found


def fault(bundle: Bundle, kind: type[Exception]) -> str:
    """The one line of what is wrong with the drafter's file."""
    with pytest.raises(kind) as caught:
        drafter(bundle)
    assert str(caught.value).isprintable()
    return str(caught.value)


def spoil(path: Path) -> None:
    """Another last bit, in a new file: the old one may still be mapped."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_the_drafter_where_it_was(tmp_path: Path) -> None:
    bundle = compiled(tmp_path)
    record = bundle.manifest.draft
    assert record is not None and record.reference == "layer.gguf"
    assert drafter(bundle).path == tmp_path / "layer.gguf"
    assert record.bytes == (tmp_path / "layer.gguf").stat().st_size


def test_another_drafter_of_the_same_size(tmp_path: Path) -> None:
    bundle = compiled(tmp_path)
    spoil(tmp_path / "layer.gguf")
    message = fault(bundle, BundleError)
    assert message.startswith(f"{tmp_path / 'layer.gguf'}: another drafter file: SHA-256 ")
    digest = hashlib.sha256((tmp_path / "layer.gguf").read_bytes()).hexdigest()
    assert bundle.manifest.draft is not None
    assert digest in message and bundle.manifest.draft.sha256 in message
    assert message.endswith("; compile again, or put the right file back")


def test_another_drafter_of_another_size(tmp_path: Path) -> None:
    bundle = compiled(tmp_path)
    (tmp_path / "layer.gguf").unlink()
    write_tiny_nextn(tmp_path / "layer.gguf", ff=96)
    size = (tmp_path / "layer.gguf").stat().st_size
    assert f"another drafter file: {size} bytes, compiled for " in fault(bundle, BundleError)


def test_a_drafter_that_is_gone(tmp_path: Path) -> None:
    """The message names every place; beside the bundle it is found as the plan names it."""
    bundle = compiled(tmp_path)
    moved = (tmp_path / "layer.gguf").rename(tmp_path / "moved.gguf")
    places = f"not at {tmp_path / 'layer.gguf'}, nor at {bundle.folder / 'layer.gguf'}"
    assert fault(bundle, ModelError) == f"drafter: {places}; put it back"
    shutil.copy(moved, bundle.folder / "layer.gguf")
    assert drafter(bundle).path == bundle.folder / "layer.gguf"


def test_a_drafter_that_is_none_any_more(tmp_path: Path) -> None:
    bundle = compiled(tmp_path)
    (tmp_path / "layer.gguf").unlink()
    (tmp_path / "layer.gguf").write_text("text")
    assert fault(bundle, ModelError).startswith(f"{tmp_path / 'layer.gguf'}: not a GGUF file")


def test_an_embedded_drafter_outlives_the_original(tmp_path: Path) -> None:
    bundle = compiled(tmp_path, embed=True)
    (tmp_path / "layer.gguf").unlink()
    bundle = load_bundle(bundle.folder.rename(tmp_path / "elsewhere"))
    assert drafter(bundle).path == bundle.folder / EMBEDDED_DRAFT


def test_an_embedded_drafter_that_changed_or_went(tmp_path: Path) -> None:
    bundle = compiled(tmp_path, embed=True)
    spoil(bundle.folder / EMBEDDED_DRAFT)
    assert "another drafter file: SHA-256" in fault(bundle, BundleError)
    (bundle.folder / EMBEDDED_DRAFT).unlink()
    assert re.search(rf"{EMBEDDED_DRAFT}: cannot be read", fault(bundle, ModelError))


def test_a_stray_file_of_that_name_is_nothing(tmp_path: Path) -> None:
    bundle = compiled(tmp_path)
    (bundle.folder / EMBEDDED_DRAFT).write_text("text")
    assert drafter(bundle).path == tmp_path / "layer.gguf"


@pytest.mark.parametrize("line", ["draft: mtp", "draft: {kind: mtp, model: ./tiny.gguf}"])
@pytest.mark.parametrize("embed", [False, True])
def test_a_drafter_in_the_models_file(tmp_path: Path, line: str, embed: bool) -> None:
    """The plan names no other file, or the same one: one file, open once, embedded once."""
    plan = write_case(tmp_path, f"context: 128\nprompt: {{sizes: [8]}}\n{line}\n", nextn_seed=1)
    bundle = load_bundle(compile_case(plan, tmp_path / "bundle", embed))
    assert bundle.manifest.draft is None and open_draft(bundle, tmp_path) is None
    assert {b.file for b in bundle.manifest.memory["cpu"].buffers.values()} == {"model"}
    assert "0/blk.2.nextn.eh_proj.weight" in bundle.manifest.memory["cpu"].buffers
    assert bundle.manifest.model.layers == bundle.manifest.stages[-1].last_layer + 1 == 2
    embedded = {p.name for p in bundle.folder.glob("*.gguf")}
    assert embedded == ({EMBEDDED_MODEL} if embed else set())
    assert "blk.2.ffn_up.weight" in open_weights(bundle, tmp_path).tensors


def test_the_first_rows_of_a_matrix(tmp_path: Path) -> None:
    """A head that is cut is filled from the whole one."""
    file = GgufFile.open(write_tiny_llama(tmp_path / "tiny.gguf"))
    part = np.empty((40, 48), np.float32)
    file.dequantize_into("token_embd.weight", part)
    assert np.array_equal(part, file.dequantize("token_embd.weight")[:40])
    for shape in ((0, 48), (134, 48), (40, 47), (48,), ()):
        with pytest.raises(ValueError, match=r"float32 of shape \(133, 48\)"):
            file.dequantize_into("token_embd.weight", np.empty(shape, np.float32))
    with pytest.raises(ValueError, match=r"float32 of shape \(48,\)"):
        file.dequantize_into("output_norm.weight", np.empty(40, np.float32))
