"""Writes a bundle beside its place, then renames it: a folder that exists is whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from strata_compile.bundle.manifest import Parts, manifest_of
from strata_compile.cubins.entries import Cubins
from strata_runtime.bundle_format import (
    DATAFLOW,
    EMBEDDED_DRAFT,
    EMBEDDED_MODEL,
    MANIFEST,
    Program,
)
from strata_runtime.errors import BundleError
from strata_runtime.records import encode


def write_bundle(parts: Parts, target: Path, embed_weights: bool) -> Path:
    """Write the bundle to `target`; an older bundle there is replaced, any other folder is not.

    BundleError where the place cannot be written. Returns `target`.
    """
    try:
        place = target.resolve()  # a link stays a link, and "." gets its name
        _check_target(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as error:
        raise BundleError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        _write_files(parts, folder, embed_weights)
        _put_in_place(folder, place)
    except OSError as error:
        raise BundleError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise BundleError(f"{target}: is a file; a bundle is a folder")
    if any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise BundleError(f"{target}: is a folder that holds something else than a bundle")


def _write_files(parts: Parts, folder: Path, embed_weights: bool) -> None:
    folder.chmod(0o755)
    (folder / "programs").mkdir()
    hashes: dict[str, str] = {}
    for program in parts.programs:
        name = f"programs/{program.stage}.{program.name}.json"
        hashes[name] = _write(folder / name, _program_text(program))
    dataflow = json.dumps(parts.dataflow.to_json())
    hashes[DATAFLOW] = _write(folder / DATAFLOW, dataflow)
    hashes |= _write_kernels(parts.cubins, folder)
    if embed_weights:
        shutil.copyfile(parts.gguf.path, folder / EMBEDDED_MODEL)
    if embed_weights and parts.draft is not None:
        shutil.copyfile(parts.draft.path, folder / EMBEDDED_DRAFT)
    manifest = manifest_of(parts, embed_weights, hashes)
    signed = dataclasses.replace(manifest, digest=manifest.own_digest())
    _write(folder / MANIFEST, signed.text())


def _write_kernels(cubins: Cubins, folder: Path) -> dict[str, str]:
    """Each unit's source beside its cubins; returns their hashes."""
    hashes: dict[str, str] = {}
    for unit, source in cubins.sources.items():
        name = f"kernels/{unit}/kernel.cu"
        (folder / name).parent.mkdir(parents=True)
        hashes[name] = _write(folder / name, source)
    for (unit, arch), cubin in cubins.cubins.items():
        name = f"kernels/{unit}/{arch}.cubin"
        hashes[name] = _write(folder / name, cubin)
    return hashes


def _program_text(program: Program) -> str:
    """JSON with one kernel call a line, so that `cat` and `diff` show calls."""
    head = {"stage": program.stage, "kind": program.kind, "rows": program.rows}
    calls = ",\n".join(json.dumps(encode(call)) for call in program.calls)
    return json.dumps(head)[:-1] + ', "calls": [\n' + calls + "\n]}\n"


def _write(path: Path, content: str | bytes) -> str:
    """Write a file through to the disk; returns its SHA-256."""
    data = content.encode() if isinstance(content, str) else content
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _put_in_place(folder: Path, target: Path) -> None:
    """Rename the folder; a bundle that was there goes only when the new one stands."""
    old = folder.with_name(f"{folder.name}.old")  # unique: nothing of a killed compile is there
    if target.exists():
        target.rename(old)
    try:
        folder.rename(target)
    except BaseException:  # an interrupt too
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
