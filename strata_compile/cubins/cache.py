"""Cubins by the hash of everything that they depend on.

A folder that cannot be used costs time, not the bundle: kernels are then compiled each time, and
one warning is logged. Nothing is ever deleted; the folder may be, at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
import uuid
from pathlib import Path

_LOG = logging.getLogger(__name__)

#: Counts up when an entry's file, or what decides about a cubin, changes its form.
SCHEMA = 1

#: Behind the cubin, so that `cuobjdump` reads an entry as it is: mark, bytes of the cubin, hash.
_TRAILER = struct.Struct("<8sQ32s")
_MARK = b"strata\0\1"


def entry_key(source: str, options: tuple[str, ...], arch: str, nvrtc: str) -> str:
    """The name of a cubin: 64 hex digits; `nvrtc` is the compiler's build."""
    parts = (SCHEMA, source, options, arch, nvrtc)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class CubinCache:
    """Cubins in `folder`/cubins, sources that failed in `folder`/failed.

    Any number of threads and processes may use one folder. With `no_compile` nothing may be
    compiled: what is not in the cache is an error of whoever asks for it.
    """

    def __init__(self, folder: Path, no_compile: bool = False) -> None:
        self.folder = folder
        self.no_compile = no_compile
        self._warned = False

    def path(self, key: str) -> Path:
        """Where an entry is, or would be."""
        return self.folder / "cubins" / key[:2] / f"{key}.cubin"

    def get(self, key: str) -> bytes | None:
        """The cubin of this key; None where there is none, or only a damaged one."""
        try:
            data = self.path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", error)
            return None
        cubin = data[: -_TRAILER.size]
        if data[-_TRAILER.size :] == _trailer(key, cubin):
            return cubin
        _LOG.warning("%s: damaged, will be compiled again", self.path(key))
        return None

    def put(self, key: str, cubin: bytes) -> None:
        """Keep a cubin; a warning where that is not possible."""
        self._write(self.path(key), cubin + _trailer(key, cubin))

    def keep_failed(self, name: str, source: str) -> Path | None:
        """Write a source that did not compile; its path, None where it cannot be written."""
        path = self.folder / "failed" / re.sub(r"[^\w.-]", "_", name)
        return path if self._write(path, source.encode()) else None

    def _write(self, path: Path, data: bytes) -> bool:
        """Beside, then renamed: readers see a whole file or none.

        There is no fsync: what a power cut leaves incomplete is noticed and compiled again.
        """
        beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                beside.write_bytes(data)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            self._warn("written", error)
            return False
        return True

    def _warn(self, done: str, error: OSError) -> None:
        if not self._warned:
            _LOG.warning("the cache of cubins cannot be %s: %s", done, error)
        self._warned = True


def _trailer(key: str, cubin: bytes) -> bytes:
    """With the key in the hash, an entry under another's name is damaged too."""
    return _TRAILER.pack(_MARK, len(cubin), hashlib.sha256(key.encode() + cubin).digest())
