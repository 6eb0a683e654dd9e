"""Loading a bundle: what has changed, is missing or does not fit is said, all at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf_maker
from strata_compile.passes import PassRunner
from strata_compile.pipeline import CompileOptions, compile_plan
from strata_runtime.bundle_format import DATAFLOW, EMBEDDED_MODEL, FORMAT_VERSION, MANIFEST
from strata_runtime.bundle_load import Bundle, load_bundle, open_weights
from strata_runtime.errors import BundleError, ModelError

PLAN = "model: tiny.gguf\nstages: 2\nslots: 2\ncontext: 200\nprompt: {sizes: [16, 64]}\n"
PROGRAM = "programs/1.exec.r3.json"


def compile_tiny(folder: Path, embed: bool = False, plan: str = PLAN) -> Path:
    """A folder with `tiny.gguf` (if it is not there yet), its plan and its bundle."""
    if not (folder / "tiny.gguf").exists():
        gguf_maker.write_tiny_llama(folder / "tiny.gguf")
    (folder / "plan.yaml").write_text(plan)
    options = CompileOptions(folder / "bundle", folder / "cache", embed)
    return compile_plan(folder / "plan.yaml", options, PassRunner())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled bundle that nobody changes; its model lies beside it."""
    return compile_tiny(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the bundle to spoil."""
    return shutil.copytree(original, tmp_path / "bundle")


def edit_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    """Apply a change to the manifest's JSON value, and sign it anew."""
    value = json.loads((folder / MANIFEST).read_text())
    change(value)
    value["digest"] = ""
    value["digest"] = hashlib.sha256(json.dumps(value, indent=1).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(value, indent=1))


def set_program(folder: Path, name: str, data: bytes) -> None:
    """Replace a program, and its hash in the manifest."""
    (folder / name).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    edit_manifest(folder, lambda m: m["files"].update({name: digest}))


def load_error(folder: Path) -> str:
    """The message with which loading fails."""
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    return str(caught.value)


def test_a_bundle_as_it_was_written(folder: Path) -> None:
    bundle = load_bundle(folder)
    assert bundle.folder == folder and bundle.manifest.format == FORMAT_VERSION
    named = {(s, n) for s, r in enumerate(bundle.manifest.stages) for n in r.programs}
    assert bundle.programs.keys() == named and len(named) == 2 * (8 + 2 + 1)
    for (stage, name), program in bundle.programs.items():
        assert (program.stage, program.name) == (stage, name) and program.calls
        assert program.calls[0].kernel == "take_table"
    assert {p.name for p in (folder / "programs").iterdir()} == {f"{s}.{n}.json" for s, n in named}


def test_a_link_to_a_bundle(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert load_bundle(tmp_path / "link").manifest == load_bundle(folder).manifest


def test_a_byte_of_a_program_has_changed(folder: Path) -> None:
    data = bytearray((folder / PROGRAM).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / PROGRAM).write_bytes(data)
    assert load_error(folder) == f"{folder}: {PROGRAM} has changed; compile again"


def test_everything_that_is_wrong_is_said_at_once(folder: Path) -> None:
    (folder / PROGRAM).unlink()
    (folder / "programs" / "0.copy.r64.json").write_text("")
    (folder / "programs" / "0.prompt.r16.json").unlink()
    message = load_error(folder)
    assert f"{PROGRAM} is missing" in message and "programs/0.prompt.r16.json is missing" in message
    assert "programs/0.copy.r64.json has changed" in message and message.count(";") == 3


@pytest.mark.parametrize(("old", "new"), [('"slots": 2', '"slots": 3'), ("tiny.gguf", "tine.gguf")])
def test_a_manifest_that_has_changed(folder: Path, old: str, new: str) -> None:
    """It carries a digest of itself, whatever its layout as text."""
    text = (folder / MANIFEST).read_text()
    assert old in text
    (folder / MANIFEST).write_text(text.replace(old, new))
    expected = f"{folder / MANIFEST}: has changed since it was written; compile again"
    assert load_error(folder) == expected
    (folder / MANIFEST).write_text(json.dumps(json.loads(text)))
    assert load_bundle(folder).manifest.digest in text


def test_a_dataflow_that_has_changed(folder: Path) -> None:
    (folder / DATAFLOW).write_text("{}")
    assert load_error(folder) == f"{folder}: {DATAFLOW} has changed; compile again"


def test_no_programs_folder(folder: Path) -> None:
    shutil.rmtree(folder / "programs")
    assert load_error(folder).count("is missing") == 22


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, "1", None, [1]])
def test_another_format(folder: Path, version: object) -> None:
    """Before anything else of the manifest is looked at."""
    (folder / MANIFEST).write_text(json.dumps({"format": version}))
    expected = f"format {version!r}, this version reads {FORMAT_VERSION}; compile again"
    assert load_error(folder) == f"{folder / MANIFEST}: {expected}"


def test_no_format(folder: Path) -> None:
    (folder / MANIFEST).write_text("{}")
    assert "format None" in load_error(folder)


def test_no_bundle(tmp_path: Path) -> None:
    assert load_error(tmp_path) == f"{tmp_path}: is not a bundle: it holds no manifest.json"
    assert "is not a bundle" in load_error(tmp_path / "absent")
    (tmp_path / "file").write_text("{}")
    assert load_error(tmp_path / "file").endswith("cannot be read: Not a directory")
    (tmp_path / MANIFEST).mkdir()
    assert load_error(tmp_path).endswith("manifest.json: cannot be read: Is a directory")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{} {}",
        b"\xff\xfe",
        b"\x00" * 40,
        b'{"format": 1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=["empty", "open", "two", "encoding", "nul", "number", "deep", "deeper"],
)
def test_not_json(folder: Path, data: bytes) -> None:
    (folder / MANIFEST).write_bytes(data)
    assert load_error(folder).startswith(f"{folder / MANIFEST}: not JSON")


@pytest.mark.parametrize("data", [b"[]", b"1", b'"text"', b"null"])
def test_no_json_object(folder: Path, data: bytes) -> None:
    (folder / MANIFEST).write_bytes(data)
    assert load_error(folder) == f"{folder / MANIFEST}: not a JSON object; compile again"


@pytest.mark.parametrize("data", [b"{", b"[" * 100_000, b"[]", b'{"stage": 1}'])
def test_a_program_that_is_none(folder: Path, data: bytes) -> None:
    set_program(folder, PROGRAM, data)
    assert load_error(folder).startswith(f"{folder / PROGRAM}: ")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda m: m["shape"].update(slots="2"), "shape.slots: str, expected int"),
        (lambda m: m.update(stages={}), "stages: dict, expected list"),
        (lambda m: m["stages"][1]["programs"].append(1), "stages.1.programs.11: int, expected"),
        (lambda m: m["model"].pop("sha256"), "model: sha256 missing"),
        (lambda m: m["files"].update(x=1), "files.x: int, expected str"),
        (lambda m: m["table"].update(extra=[]), "table: unknown extra"),
        (lambda m: m["memory"]["cpu"]["arenas"]["0/ring"].update(host=1), "memory.cpu.arenas.0/"),
    ],
)
def test_a_manifest_of_wrong_types(
    folder: Path, change: Callable[[Any], object], path: str
) -> None:
    edit_manifest(folder, change)
    message = load_error(folder)
    assert message.startswith(f"{folder / MANIFEST}: ") and path in message


def test_a_program_of_wrong_types(folder: Path) -> None:
    value = json.loads((folder / PROGRAM).read_text())
    value["calls"][1]["args"]["out"]["shape"] = ["8"]
    set_program(folder, PROGRAM, json.dumps(value).encode())
    expected = "calls.1.args.out.shape.0: str, expected int; compile again"
    assert load_error(folder) == f"{folder / PROGRAM}: {expected}"


def test_a_program_that_a_stage_lacks(folder: Path) -> None:
    edit_manifest(folder, lambda m: m["files"].pop(PROGRAM))
    edit_manifest(folder, lambda m: m["stages"][1]["programs"].append("exec.r9"))
    assert load_error(folder) == f"{folder}: stage 1 lacks exec.r3, exec.r9; compile again"


@pytest.mark.parametrize("name", ["../secret", "programs/../../secret", "/etc/hostname"])
def test_a_name_that_leaves_the_bundle(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("{}")
    edit_manifest(folder, lambda m: m["files"].update({name: "0" * 64}))
    assert load_error(folder) == f"{folder}: {name!r} leaves the bundle"


@pytest.mark.parametrize("name", [PROGRAM, MANIFEST])
def test_a_linked_file_is_not_followed(folder: Path, original: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(original / name)
    assert load_error(folder) == f"{folder}: {name!r} leaves the bundle"


def test_a_linked_folder_is_not_followed(folder: Path, original: Path) -> None:
    shutil.rmtree(folder / "programs")
    (folder / "programs").symlink_to(original / "programs")
    assert "leaves the bundle" in load_error(folder)


@pytest.mark.parametrize(
    "name", ["a\0b", "\ud800", "x" * 5000, "", "programs"], ids=["nul", "half", "long", "", "dir"]
)
def test_a_name_that_no_file_has(folder: Path, name: str) -> None:
    edit_manifest(folder, lambda m: m["files"].update({name: "0" * 64}))
    assert str(folder) in load_error(folder)


def test_a_pipe_is_not_read(folder: Path) -> None:
    """To open one waits for its writer, perhaps for ever; here it has one."""
    data = (folder / PROGRAM).read_bytes()
    (folder / PROGRAM).unlink()
    os.mkfifo(folder / PROGRAM)
    writer = threading.Thread(target=write_pipe, args=(folder / PROGRAM, data))
    writer.start()
    try:
        assert PROGRAM in load_error(folder)
    finally:
        os.close(os.open(folder / PROGRAM, os.O_RDONLY | os.O_NONBLOCK))
        writer.join()


def write_pipe(path: Path, data: bytes) -> None:
    """Write to whoever opens the pipe, if he stays."""
    with contextlib.suppress(BrokenPipeError):
        path.write_bytes(data)


def loaded(folder: Path) -> tuple[Bundle, Path]:
    """The bundle, and an empty cache."""
    return load_bundle(folder), folder.parent / "cache"


def test_the_model_where_it_was(folder: Path, original: Path) -> None:
    assert open_weights(*loaded(folder)).path == original.parent / "tiny.gguf"


def change_weight(path: Path) -> None:
    """Turn the last bit of the last byte: the same size, another model."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_another_model_of_the_same_size(tmp_path: Path) -> None:
    folder = compile_tiny(tmp_path)
    bundle, cache = loaded(folder)
    change_weight(tmp_path / "tiny.gguf")
    digest = hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest()
    with pytest.raises(BundleError, match="another model file: SHA-256") as caught:
        open_weights(bundle, cache)
    message = str(caught.value)
    assert digest in message and bundle.manifest.model.sha256 in message and "--model" in message


def test_another_model_of_another_size(folder: Path, tmp_path: Path) -> None:
    other = gguf_maker.write_tiny_llama(tmp_path / "other.gguf", layers=3)
    bundle, cache = loaded(folder)
    sizes = f"{other.stat().st_size} bytes, compiled for {bundle.manifest.model.bytes}"
    with pytest.raises(BundleError, match=f"{other}: another model file: {sizes}; .*--model"):
        open_weights(bundle, cache, other)


def test_a_model_that_has_moved(tmp_path: Path) -> None:
    """The message names the place where it was, and the way out; with it, all is well."""
    folder = compile_tiny(tmp_path)
    moved = (tmp_path / "tiny.gguf").rename(tmp_path / "moved.gguf")
    bundle, cache = loaded(folder)
    assert open_weights(bundle, cache, moved).path == moved
    with pytest.raises(ModelError) as caught:
        open_weights(bundle, cache)
    assert str(tmp_path / "tiny.gguf") in str(caught.value) and "--model" in str(caught.value)


def test_a_packaged_model_that_has_moved(folder: Path, original: Path, tmp_path: Path) -> None:
    """It is looked for as the plan names it; the message says everywhere it was not."""
    edit_manifest(folder, lambda m: m["model"].update(path="/was/here.gguf"))
    edit_manifest(folder, lambda m: m["model"].update(reference="package:strata_none/tiny.gguf"))
    bundle, cache = loaded(folder)
    with pytest.raises(ModelError, match=r"not in .*cache.*, nor at /was/here.gguf; .*--model"):
        open_weights(bundle, cache)
    place = cache / "models" / "strata_none"
    place.mkdir(parents=True)
    shutil.copy(original.parent / "tiny.gguf", place)
    assert open_weights(bundle, cache).path == place / "tiny.gguf"


def test_embedded_weights_outlive_the_original(tmp_path: Path) -> None:
    folder = compile_tiny(tmp_path, embed=True)
    (tmp_path / "tiny.gguf").unlink()
    folder = folder.rename(tmp_path / "elsewhere")
    bundle, cache = loaded(folder)
    gguf = open_weights(bundle, cache)
    assert gguf.path == folder / EMBEDDED_MODEL
    assert gguf.sha256() == bundle.manifest.model.sha256


def test_embedded_weights_are_used_though_the_original_is_there(tmp_path: Path) -> None:
    folder = compile_tiny(tmp_path, embed=True)
    change_weight(tmp_path / "tiny.gguf")
    assert open_weights(*loaded(folder)).path == folder / EMBEDDED_MODEL


def test_embedded_weights_that_changed_or_went(tmp_path: Path) -> None:
    folder = compile_tiny(tmp_path, embed=True)
    bundle, cache = loaded(folder)
    change_weight(folder / EMBEDDED_MODEL)
    with pytest.raises(BundleError, match="SHA-256"):
        open_weights(bundle, cache)
    (folder / EMBEDDED_MODEL).unlink()
    with pytest.raises(ModelError, match=EMBEDDED_MODEL):
        open_weights(bundle, cache)


def test_a_model_that_is_none(folder: Path, tmp_path: Path) -> None:
    bundle, cache = loaded(folder)
    (tmp_path / "text.gguf").write_text("text")
    for name in ("text.gguf", "absent.gguf", "."):
        with pytest.raises(ModelError):
            open_weights(bundle, cache, tmp_path / name)
