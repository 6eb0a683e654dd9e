"""Entries: found, damaged, misplaced, refused; many processes at one key."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from strata_compile.cubins.cache import CubinCache, entry_key

KEY = entry_key("source", ("-a", "-b"), "sm_86", "13.5.37")
CUBIN = b"\x7fELF" + bytes(range(256)) * 40


def test_a_miss_then_a_hit(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    assert cache.get(KEY) is None
    assert not list(tmp_path.iterdir())  # asking leaves nothing
    cache.put(KEY, CUBIN)
    assert cache.get(KEY) == CubinCache(tmp_path).get(KEY) == CUBIN
    assert cache.path(KEY) == tmp_path / "cubins" / KEY[:2] / f"{KEY}.cubin"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [cache.path(KEY)]


@pytest.mark.parametrize("cubin", [b"", b"x", CUBIN])
def test_any_content_comes_back(cubin: bytes, tmp_path: Path) -> None:
    CubinCache(tmp_path).put(KEY, cubin)
    assert CubinCache(tmp_path).get(KEY) == cubin
    assert CubinCache(tmp_path).path(KEY).read_bytes().startswith(cubin)  # for cuobjdump


def test_every_ingredient_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        KEY,
        entry_key("source ", ("-a", "-b"), "sm_86", "13.5.37"),
        entry_key("source", ("-b", "-a"), "sm_86", "13.5.37"),
        entry_key("source", ("-a -b",), "sm_86", "13.5.37"),
        entry_key("source", ("-a",), "-b", "13.5.37"),
        entry_key("source", ("-a", "-b"), "sm_89", "13.5.37"),
        entry_key("source", ("-a", "-b"), "sm_86", "13.5.38"),
    ]
    monkeypatch.setattr("strata_compile.cubins.cache.SCHEMA", -1)
    keys.append(entry_key("source", ("-a", "-b"), "sm_86", "13.5.37"))
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 64 and set(key) <= set("0123456789abcdef") for key in keys)


def test_a_key_is_the_same_everywhere() -> None:
    """Another process, another machine: the same name. It changes with the schema number only."""
    assert entry_key("é\n", (), "sm_70", "12.9.86").startswith("a99c687dc80af023")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[:-1],
        lambda data: data[1:],
        lambda data: data + b"\0",
        lambda data: data[:100] + b"\0" + data[101:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes(len(data)),
    ],
)
def test_damaged_entries_are_misses(
    damage: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CubinCache(tmp_path)
    cache.put(KEY, CUBIN)
    whole = cache.path(KEY).read_bytes()
    cache.path(KEY).write_bytes(damage(whole))  # type: ignore[operator]
    assert cache.get(KEY) is None
    assert "damaged" in caplog.text
    cache.put(KEY, CUBIN)
    assert cache.path(KEY).read_bytes() == whole and cache.get(KEY) == CUBIN


def test_an_entry_under_another_name_is_damaged(tmp_path: Path) -> None:
    cache, other = CubinCache(tmp_path), entry_key("other", (), "sm_86", "13.5.37")
    cache.put(KEY, CUBIN)
    cache.path(other).parent.mkdir(exist_ok=True)
    cache.path(KEY).rename(cache.path(other))
    assert cache.get(other) is None


def test_a_folder_that_cannot_be_used_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = CubinCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        cache.put(KEY, CUBIN)
        cache.put(KEY, CUBIN)
        assert cache.get(KEY) is None
        assert cache.keep_failed("unit.sm_86.cu", "source") is None
    assert len(caplog.records) == 1 and "cannot be written" in caplog.text


def test_an_entry_that_cannot_be_read_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CubinCache(tmp_path)
    cache.path(KEY).mkdir(parents=True)
    assert cache.get(KEY) is None and "cannot be read" in caplog.text
    cache.put(KEY, CUBIN)  # nor written; what stood beside it is gone
    assert list(cache.path(KEY).parent.iterdir()) == [cache.path(KEY)]


def test_failed_sources_are_kept(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    first = cache.keep_failed("0/exec r1.sm_86.cu", "é\n")
    assert first == tmp_path / "failed" / "0_exec_r1.sm_86.cu"
    assert first.read_bytes() == "é\n".encode()
    assert cache.keep_failed("0/exec r1.sm_86.cu", "again") == first
    assert first.read_text() == "again"


WRITER = """
import sys
from pathlib import Path
from strata_compile.cubins.cache import CubinCache
cache, key, cubin = CubinCache(Path(sys.argv[1])), sys.argv[2], bytes(range(256)) * 800
for _ in range(100):
    cache.put(key, cubin)
    assert cache.get(key) == cubin
"""


def test_many_processes_at_one_key(tmp_path: Path) -> None:
    """No reader ever sees a part of an entry."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), KEY]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(p.communicate()[1], p.returncode) for p in running] == [("", 0)] * 4
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [CubinCache(tmp_path).path(KEY)]
