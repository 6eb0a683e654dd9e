"""Files of wheels that are not there, whole, or of another CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from strata_compile.cubins.wheels import Headers, WheelFile, cuda_headers, wheel_file


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the installed packages."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(site: Path, name: str, version: str, *files: str) -> None:
    """A wheel with these files; one whose path ends in `?` is listed and missing."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file.rstrip('?')},,\n" for file in files))
    for file in files:
        if not file.endswith("?"):
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text("")


def test_a_file_is_found_by_its_end(site: Path) -> None:
    install(site, "some-wheel", "13.5.1", "a/b/other.so.13", "a/b/lib.so.13", "a/b/lib.so.13.alt")
    expected = WheelFile((site / "a/b/lib.so.13").resolve(), "13.5.1")
    assert wheel_file("some-wheel", "lib.so.13") == wheel_file("some-wheel", "b/lib.so.13")
    assert wheel_file("some-wheel", "lib.so.13") == expected


def test_what_is_missing_is_none(site: Path) -> None:
    install(site, "some-wheel", "13.5.1", "a/lib.so.13?")
    assert wheel_file("some-wheel", "lib.so.13") is None  # listed only
    assert wheel_file("some-wheel", "lib.so.12") is None
    assert wheel_file("other-wheel", "lib.so.13") is None


def test_headers_of_two_wheels(site: Path) -> None:
    assert cuda_headers(13) is None
    install(site, "nvidia-cuda-runtime", "13.5.1", "nv/cu13/include/cuda_fp16.h")
    assert cuda_headers(13) is None
    install(site, "nvidia-cuda-crt", "13.5.2", "nv/cu13/include/crt/host_defines.h")
    found, folder = cuda_headers(13), (site / "nv/cu13/include").resolve()
    assert found == Headers((folder,), ("nvidia-cuda-runtime 13.5.1", "nvidia-cuda-crt 13.5.2"))
    assert found.options == (f"--include-path={folder}",)


def test_headers_of_another_cuda_do_not_count(site: Path) -> None:
    install(site, "nvidia-cuda-runtime-cu12", "11.8.1", "nv/cuda_runtime/include/cuda_fp16.h")
    assert cuda_headers(12) is None
