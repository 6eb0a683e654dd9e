"""Bundles on disk: whole or not there, never over something else, equal from equal inputs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compile_case import Passes, compile_case, contents, run_passes, write_case
from strata_compile.bundle.write import write_bundle
from strata_runtime.bundle_format import EMBEDDED_MODEL, MANIFEST
from strata_runtime.bundle_load import load_bundle, open_weights
from strata_runtime.errors import BundleError
from strata_runtime.records import encode

SMALL = "stages: 2\nprompt: {sizes: [8]}\n"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_case(tmp_path, SMALL)


@pytest.fixture
def bundle(plan: Path) -> Path:
    return compile_case(plan, plan.parent / "bundle")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


#: What stands beside a bundle, and nothing else.
BESIDE = ["bundle", "plan.yaml", "tiny.gguf"]


def test_files_and_hashes(bundle: Path) -> None:
    found = contents(bundle)
    manifest = json.loads(found.pop(MANIFEST))
    kinds = [*(f"exec.r{n}" for n in range(1, 9)), "prompt.r8", "copy.r8"]
    programs = {f"programs/{s}.{kind}.json" for s in (0, 1) for kind in kinds}
    assert {n for n in found if "/" in n} == programs
    assert manifest["files"] == {n: hashlib.sha256(d).hexdigest() for n, d in found.items()}
    model = (bundle.parent / "tiny.gguf").read_bytes()
    assert manifest["model"]["sha256"] == hashlib.sha256(model).hexdigest()
    assert manifest["model"]["bytes"] == len(model)
    assert names(bundle.parent) == BESIDE


def test_reads_back_as_it_was_made(tmp_path: Path) -> None:
    made = run_passes(tmp_path, SMALL)
    parts = made.parts
    read = load_bundle(write_bundle(parts, tmp_path / "bundle", embed_weights=False))
    assert read.programs == {(p.stage, p.name): p for p in parts.programs}
    manifest = read.manifest
    assert manifest.memory == parts.memory
    assert manifest.plan == made.plan.to_json()
    assert encode(manifest) == json.loads((tmp_path / "bundle" / MANIFEST).read_text())
    assert [(s.first_layer, s.last_layer, len(s.programs)) for s in manifest.stages] == [
        (0, 0, 10),
        (1, 1, 10),
    ]
    shape = manifest.shape
    assert (shape.slots, shape.groups, shape.context, shape.prompt_sizes) == (1, 1, 512, (8,))


def test_a_program_has_one_call_a_line(bundle: Path) -> None:
    text = (bundle / "programs" / "1.exec.r2.json").read_text()
    calls = json.loads(text)["calls"]
    lines = text.splitlines()
    assert len(lines) == len(calls) + 2
    for line, call in zip(lines[1:-1], calls, strict=True):
        assert json.loads(line.rstrip(",")) == call


def test_two_compiles_are_equal_byte_by_byte(plan: Path, bundle: Path) -> None:
    again = compile_case(plan, plan.parent / "elsewhere" / "again")
    assert contents(again) == contents(bundle)


def test_hash_seed_and_folder_change_nothing(plan: Path, bundle: Path, tmp_path: Path) -> None:
    code = "import sys; from strata_compile.cli import main; sys.exit(main(sys.argv[1:]))"
    other = tmp_path / "elsewhere"
    other.mkdir()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC{seed}", "LC_ALL": "C"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(plan), "-o", f"bundle{seed}"],
            cwd=other, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert contents(other / f"bundle{seed}") == contents(bundle)


def values(item: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every plain value of a JSON tree with its path."""
    if isinstance(item, dict):
        return [v for key, value in item.items() for v in values(value, f"{path}/{key}")]
    if isinstance(item, list):
        return [v for i, value in enumerate(item) for v in values(value, f"{path}/{i}")]
    return [(path, item)]


def test_no_addresses_and_no_time_stamps(bundle: Path) -> None:
    manifest = json.loads((bundle / MANIFEST).read_text())
    arenas = manifest["memory"]["cpu"]["arenas"]
    largest = max(arena["bytes"] for arena in arenas.values())
    numbers = 0
    for name, data in contents(bundle).items():
        text = data.decode()
        assert not re.search(r"0x[0-9a-f]{6,}|\d\d:\d\d:\d\d|20\d\d-\d\d-\d\d", text), name
        for path, value in values(json.loads(text)):
            if isinstance(value, int | float) and path != "/model/bytes":
                assert -1 <= value <= largest, (name, path)
                numbers += 1
    assert numbers > 1000


def test_paths_of_this_machine_stand_in_one_place_only(bundle: Path) -> None:
    home = str(bundle.parent)
    places = [
        (name, path)
        for name, data in contents(bundle).items()
        for path, value in values(json.loads(data))
        if isinstance(value, str) and home in value
    ]
    assert places == [(MANIFEST, "/model/path")]


def test_an_older_bundle_is_replaced_whole(plan: Path, bundle: Path) -> None:
    (bundle / "programs" / "9.exec.r1.json").write_text("an older file")
    plan.write_text(plan.read_text().replace("stages: 2", "stages: 1"))
    compile_case(plan, bundle)
    assert contents(bundle) == contents(compile_case(plan, plan.parent / "fresh"))
    assert names(plan.parent) == sorted([*BESIDE, "fresh"])


def test_an_empty_folder_and_missing_parents_are_taken(plan: Path) -> None:
    empty = plan.parent / "empty"
    empty.mkdir()
    deep = plan.parent / "a" / "b" / "c"
    for target in (empty, deep):
        assert load_bundle(compile_case(plan, target)).folder == target
    assert names(plan.parent / "a" / "b") == ["c"]


#: Plants a fault; the number is that of the bundle's files.
Fault = Callable[[pytest.MonkeyPatch, int], None]


def disk_is_full(share: float) -> Fault:
    """The disk is full when this share of the bundle's files has been written."""

    def plant(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
        left = iter(range(int(share * files)))

        def fsync(file: int) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fsync)

    return plant


def rename_fails(name: str, error: BaseException) -> Fault:
    """Renaming fails for paths that look so."""

    def plant(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
        rename = Path.rename

        def refuse(self: Path, target: Path) -> Path:
            if re.fullmatch(name, self.name):
                raise error
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", refuse)

    return plant


def cannot_be_made(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """No folder can be made beside the bundle."""

    def refuse(**place: object) -> str:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)


DENIED = OSError(errno.EACCES, "Permission denied")
TEMPORARY = r"\.bundle\.(?!.*old$).*"
FAULTS: dict[str, tuple[Fault, str]] = {
    "first file": (disk_is_full(0.0), "No space left on device"),
    "half": (disk_is_full(0.5), "No space left on device"),
    "last file": (disk_is_full(0.99), "No space left on device"),
    "read-only folder": (cannot_be_made, "Read-only file system"),
    "old bundle stays": (rename_fails("bundle", DENIED), "Permission denied"),
    "new bundle stays": (rename_fails(TEMPORARY, DENIED), "Permission denied"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_an_older_bundle_survives_a_failure(
    plan: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    plant, reason = FAULTS[case]
    before = contents(bundle)
    plan.write_text(plan.read_text() + "slots: 3\n")
    plant(monkeypatch, len(before))
    with pytest.raises(BundleError) as caught:
        compile_case(plan, bundle)
    monkeypatch.undo()
    assert str(caught.value) == f"{bundle}: cannot be written: {reason}"
    assert contents(bundle) == before and load_bundle(bundle).manifest.shape.slots == 1
    assert names(plan.parent) == BESIDE
    assert load_bundle(compile_case(plan, bundle)).manifest.shape.slots == 3


@pytest.mark.parametrize("case", [c for c in FAULTS if c != "old bundle stays"])
def test_a_failure_leaves_nothing(plan: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    plant, reason = FAULTS[case]
    plant(monkeypatch, len(contents(compile_case(plan, plan.parent / "other"))))
    with pytest.raises(BundleError, match=reason):
        compile_case(plan, plan.parent / "bundle")
    assert names(plan.parent) == ["other", "plan.yaml", "tiny.gguf"]


@pytest.mark.parametrize("name", ["bundle", TEMPORARY])
def test_an_interrupt_while_it_is_put_in_place(
    plan: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = contents(bundle)
    rename_fails(name, KeyboardInterrupt())(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        compile_case(plan, bundle)
    assert names(plan.parent) == BESIDE
    assert contents(bundle) == before


def test_what_a_killed_compile_left_is_in_nobodys_way(plan: Path, bundle: Path) -> None:
    """Killed while it removed the older bundle, which had been renamed."""
    rest = plan.parent / ".bundle.old" / "programs"
    rest.mkdir(parents=True)
    (rest / "0.exec.r1.json").write_text("{}")
    assert load_bundle(compile_case(plan, bundle)).folder == bundle


def test_a_link_to_a_bundle(plan: Path, bundle: Path) -> None:
    link = plan.parent / "link"
    link.symlink_to("bundle")
    for slots in (2, 3):
        plan.write_text(f"model: tiny.gguf\n{SMALL}slots: {slots}\n")
        compile_case(plan, link)
        assert load_bundle(link).manifest.shape.slots == slots
        assert names(plan.parent) == sorted([*BESIDE, "link"])


@pytest.mark.parametrize("content", ["notes.txt", "programs/0.exec.r1.json", ".hidden"])
def test_a_folder_that_is_no_bundle_is_refused(plan: Path, content: str) -> None:
    target = plan.parent / "photos"
    file = target / content
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    with pytest.raises(BundleError, match="holds something else than a bundle"):
        compile_case(plan, target)
    assert contents(target) == {content: b"precious"}
    assert names(plan.parent) == ["photos", "plan.yaml", "tiny.gguf"]


def test_a_file_is_refused(plan: Path) -> None:
    target = plan.parent / "bundle"
    target.write_text("precious")
    with pytest.raises(BundleError, match="bundle: is a file; a bundle is a folder"):
        compile_case(plan, target)
    assert target.read_text() == "precious"
    with pytest.raises(BundleError, match="cannot be written"):
        compile_case(plan, target / "inside")
    assert names(plan.parent) == BESIDE


def test_embedded_weights_make_the_model_file_dispensable(plan: Path) -> None:
    model = (plan.parent / "tiny.gguf").read_bytes()
    bundle = compile_case(plan, plan.parent / "bundle", embed=True)
    (plan.parent / "tiny.gguf").unlink()
    assert (bundle / EMBEDDED_MODEL).read_bytes() == model
    read = load_bundle(bundle)
    assert read.manifest.model.embedded
    assert open_weights(read, plan.parent).path == bundle / EMBEDDED_MODEL


def test_without_embedded_weights_the_model_is_only_named(made: Passes, bundle: Path) -> None:
    assert not (bundle / EMBEDDED_MODEL).exists()
    record = load_bundle(bundle).manifest.model
    assert (record.embedded, record.reference, record.path) == (
        False,
        "tiny.gguf",
        str(made.gguf.path.resolve()),
    )


@pytest.fixture
def made(tmp_path: Path) -> Passes:
    return run_passes(tmp_path, SMALL)
