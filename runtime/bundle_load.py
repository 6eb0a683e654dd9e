"""A folder to a bundle: read, hashed, and compared with what is here; touches no device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_runtime.bundle_format import (
    EMBEDDED_DRAFT,
    EMBEDDED_MODEL,
    FORMAT_VERSION,
    MANIFEST,
    DraftRecord,
    Manifest,
    ModelRecord,
    Program,
)
from strata_runtime.errors import BundleError, ModelError
from strata_runtime.gguf_file import GgufFile
from strata_runtime.model_source import find_model
from strata_runtime.records import decode


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are what its manifest says; programs by stage and name."""

    folder: Path
    manifest: Manifest
    programs: Mapping[tuple[int, str], Program]


def load_bundle(folder: Path) -> Bundle:
    """Read a bundle; BundleError lists every file that is missing or changed."""
    manifest = _manifest(folder)
    texts = {name: _read(folder, name) for name in manifest.files}
    wrong = [
        f"{name} {'is missing' if data is None else 'has changed'}"
        for name, data in texts.items()
        if data is None or hashlib.sha256(data).hexdigest() != manifest.files[name]
    ]
    if wrong:
        raise BundleError(f"{folder}: {'; '.join(wrong)}; compile again")
    names = [name for name in manifest.files if name.startswith("programs/")]
    programs = [_program(folder / name, texts[name] or b"") for name in names]
    found = {(p.stage, p.name): p for p in programs}
    for stage, record in enumerate(manifest.stages):
        if missing := [n for n in record.programs if (stage, n) not in found]:
            raise BundleError(f"{folder}: stage {stage} lacks {', '.join(missing)}; compile again")
    return Bundle(folder, manifest, found)


def _manifest(folder: Path) -> Manifest:
    data = _read(folder, MANIFEST)
    if data is None:
        raise BundleError(f"{folder}: is not a bundle: it holds no {MANIFEST}")
    where = str(folder / MANIFEST)
    value = _parse(where, data)
    version = value.get("format")
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{where}: format {version!r}, this version reads {FORMAT_VERSION}; compile again"
        )
    manifest = decode(Manifest, value, where)
    if manifest.digest != manifest.own_digest():
        raise BundleError(f"{where}: has changed since it was written; compile again")
    return manifest


def _program(path: Path, data: bytes) -> Program:
    return decode(Program, _parse(str(path), data), str(path))


def _parse(where: str, data: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: not JSON: {error}; compile again") from error
    if not isinstance(value, dict):
        raise BundleError(f"{where}: not a JSON object; compile again")
    return value


def _read(folder: Path, name: str) -> bytes | None:
    """A file of the bundle, or None; a name that leaves the folder is never followed."""
    path = folder / name
    try:
        if Path(name).is_absolute() or path.resolve() != folder.resolve() / name:  # links too
            raise BundleError(f"{folder}: {name!r} leaves the bundle")
        if path.is_fifo():  # to open one would wait for its writer
            raise BundleError(f"{path}: is not a file")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BundleError(f"{path}: cannot be read: {reason}") from error


@dataclass(frozen=True)
class _Source:
    """One of the files with weights: its record, its name in the bundle, what to do about it."""

    record: ModelRecord | DraftRecord
    what: str
    embedded: str
    advice: str


def open_weights(bundle: Bundle, cache: Path, override: Path | None = None) -> GgufFile:
    """The bundle's model file: given, embedded, where it was, or as the plan names it.

    BundleError says what differs from the file that was compiled, with both values; ModelError
    where it was looked for in vain.
    """
    record = bundle.manifest.model
    source = _Source(record, "model", EMBEDDED_MODEL, "name {} with --model")
    return _open(source, override or _path(bundle, source, cache))


def open_draft(bundle: Bundle, cache: Path) -> GgufFile | None:
    """The drafter's own file, where the bundle has one: embedded, where it was, or as planned.

    Errors as open_weights.
    """
    record = bundle.manifest.draft
    if record is None:
        return None
    source = _Source(record, "drafter", EMBEDDED_DRAFT, "put {} back")
    return _open(source, _path(bundle, source, cache))


def _open(source: _Source, path: Path) -> GgufFile:
    """The file at `path`, if it is the one that was compiled."""
    gguf, record = GgufFile.open(path), source.record
    size, digest, wrong = path.stat().st_size, "", ""
    if size != record.bytes:
        wrong = f"{size} bytes, compiled for {record.bytes}"
    elif (digest := gguf.sha256()) != record.sha256:
        wrong = f"SHA-256 {digest}, compiled for {record.sha256}"
    if wrong:
        advice = source.advice.format("the right file")
        message = f"another {source.what} file: {wrong}; compile again, or {advice}"
        raise BundleError(f"{path}: {message}")
    return gguf


def _path(bundle: Bundle, source: _Source, cache: Path) -> Path:
    """Where a file lies: in the bundle, where it was, or where the plan says; else ModelError."""
    was, advice = source.record.path, source.advice.format("it")
    if bundle.manifest.model.embedded:  # then both files are
        return bundle.folder / source.embedded
    if Path(was).is_file():
        return Path(was)
    try:
        found = find_model(source.record.reference, bundle.folder, cache)
    except ModelError as error:
        raise ModelError(f"{error}, nor at {was}; {advice}") from error
    if not found.is_file():
        raise ModelError(f"{source.what}: not at {was}, nor at {found}; {advice}")
    return found
