"""Units by architectures: what is compiled, what is kept, what is reported, what fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cubin_case import ARCHS, SPILL, SUM, FakeNvrtc, needs_nvrtc
from strata_compile.cubins.cache import CubinCache
from strata_compile.cubins.compile import OPTIONS, SOURCE_NAME, Unit, compile_units
from strata_compile.cubins.resources import read_resources
from strata_compile.cubins.wheels import Headers
from strata_compile.errors import KernelCompileError

A, B = Unit("exec.r1", "short"), Unit("exec.r8", "rather long")
Install = Callable[[FakeNvrtc], FakeNvrtc]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a compiler in place of whichever is installed."""

    def put(nvrtc: FakeNvrtc) -> FakeNvrtc:
        monkeypatch.setattr("strata_compile.cubins.compile.compiler_for", lambda arch: nvrtc)
        return nvrtc

    return put


def entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_every_unit_for_every_architecture(install: Install, tmp_path: Path) -> None:
    nvrtc, lines = install(FakeNvrtc()), []
    found = compile_units([A, B], ["sm_86", "sm_90"], CubinCache(tmp_path), lines.append)
    assert list(found) == [(u.name, arch) for arch in ("sm_86", "sm_90") for u in (A, B)]
    for (name, arch), cubin in found.items():
        source = {A.name: A.source, B.name: B.source}[name]
        assert cubin == repr((source, SOURCE_NAME, arch, OPTIONS, nvrtc.build)).encode()
    assert lines == [  # the long ones first
        "exec.r8 for sm_86 (1 of 4)",
        "exec.r8 for sm_90 (2 of 4)",
        "exec.r1 for sm_86 (3 of 4)",
        "exec.r1 for sm_90 (4 of 4)",
    ]


def test_nothing_to_do_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("strata_compile.cubins.compile.compiler_for")
    assert compile_units([A], [], CubinCache(tmp_path, no_compile=True)) == {}


def test_the_second_time_nothing_is_compiled(install: Install, tmp_path: Path) -> None:
    nvrtc, lines = install(FakeNvrtc()), []
    first = compile_units([A, B], ["sm_86"], CubinCache(tmp_path))
    assert len(nvrtc.compiled) == 2
    again = compile_units([B, A], ["sm_86"], CubinCache(tmp_path, True), lines.append)
    assert again == first and len(nvrtc.compiled) == 2 and not lines
    more = compile_units([A, B], ["sm_86", "sm_90"], CubinCache(tmp_path))
    assert [arch for _, arch, _ in nvrtc.compiled[2:]] == ["sm_90"] * 2
    assert first.items() <= more.items()


def test_another_compiler_compiles_again(install: Install, tmp_path: Path) -> None:
    install(FakeNvrtc(build="13.5.1"))
    one = compile_units([A], ["sm_86"], CubinCache(tmp_path))
    other = install(FakeNvrtc(build="13.5.2"))
    two = compile_units([A], ["sm_86"], CubinCache(tmp_path))
    assert len(other.compiled) == 1 and one != two and len(entries(tmp_path)) == 2


def test_equal_sources_are_compiled_once(install: Install, tmp_path: Path) -> None:
    nvrtc = install(FakeNvrtc())
    found = compile_units([A, Unit("same", A.source)], ["sm_86"], CubinCache(tmp_path))
    assert len(nvrtc.compiled) == 1
    assert found[A.name, "sm_86"] == found["same", "sm_86"]


def test_a_damaged_entry_is_compiled_again(install: Install, tmp_path: Path) -> None:
    nvrtc = install(FakeNvrtc())
    first = compile_units([A], ["sm_86"], CubinCache(tmp_path))
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-5])
    assert compile_units([A], ["sm_86"], CubinCache(tmp_path)) == first
    assert len(nvrtc.compiled) == 2 and entry.read_bytes() == whole


def test_a_miss_where_nothing_may_be_compiled(install: Install, tmp_path: Path) -> None:
    nvrtc = install(FakeNvrtc())
    compile_units([A], ["sm_86"], CubinCache(tmp_path))
    with pytest.raises(KernelCompileError) as caught:
        compile_units([A, B], ["sm_86", "sm_90"], CubinCache(tmp_path, no_compile=True))
    missing = "exec.r8 for sm_86, exec.r1 for sm_90, exec.r8 for sm_90"
    assert str(caught.value).endswith(f"not compiled before: {missing}")
    assert "STRATA_NO_COMPILE" in str(caught.value) and len(nvrtc.compiled) == 1


def test_without_a_usable_cache_everything_is_compiled(install: Install, tmp_path: Path) -> None:
    nvrtc = install(FakeNvrtc())
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert len(compile_units([A, B], ["sm_86"], CubinCache(tmp_path / "file"))) == 2
    assert len(nvrtc.compiled) == 4


def test_compiles_run_at_the_same_time(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    install(FakeNvrtc(meet=threading.Barrier(2)))  # breaks where one waits for the other
    assert len(compile_units([A, B], ["sm_86"], CubinCache(tmp_path))) == 2


def test_an_error_names_the_unit_and_keeps_its_source(install: Install, tmp_path: Path) -> None:
    install(FakeNvrtc())
    bad = Unit("exec.r2", "not! CUDA, and longer than the others")
    with pytest.raises(KernelCompileError) as caught:
        compile_units([A, bad, B], ["sm_86"], CubinCache(tmp_path))
    path = tmp_path / "failed" / "exec.r2.sm_86.cu"
    message = f"exec.r2 for sm_86: {SOURCE_NAME}(1): error: `!` (source: {path})"
    assert str(caught.value) == message and caught.value.source == path
    assert path.read_text() == bad.source
    assert caught.value.log.startswith("a warning") and "1 error detected" in caught.value.log
    assert [p.parent.name for p in entries(tmp_path) if p.suffix != ".cubin"] == ["failed"]


def test_of_many_errors_the_same_one_is_told(install: Install, tmp_path: Path) -> None:
    install(FakeNvrtc())
    units = [Unit(f"u{i}", "!" * (10 + i)) for i in range(8)]
    for _ in range(5):
        with pytest.raises(KernelCompileError, match=r"^u7 for sm_75: "):
            compile_units(units, ["sm_75", "sm_86"], CubinCache(tmp_path))


def test_an_error_without_a_folder_still_has_its_log(install: Install, tmp_path: Path) -> None:
    install(FakeNvrtc())
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelCompileError) as caught:
        compile_units([Unit("u", "!")], ["sm_86"], CubinCache(tmp_path / "file"))
    assert caught.value.source is None and "1 error detected" in caught.value.log


def test_headers_are_asked_for_and_part_of_the_key(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvrtc, where = install(FakeNvrtc()), "strata_compile.cubins.compile.cuda_headers"
    compile_units([A], ["sm_86"], CubinCache(tmp_path))
    for folder, wheel in (("one", "crt 1"), ("two", "crt 1"), ("two", "crt 2")):
        headers = Headers((Path(folder),), (wheel,))
        monkeypatch.setattr(where, lambda major, headers=headers: headers)
        compile_units([A], ["sm_86"], CubinCache(tmp_path), headers=True)
    given = [options[len(OPTIONS) :] for _, _, options in nvrtc.compiled]
    assert given == [(), ("--include-path=one",), ("--include-path=two",)]  # content, not place
    monkeypatch.setattr(where, lambda major: None)
    with pytest.raises(KernelCompileError, match=r"sm_86 needs CUDA 13's headers: .* extra cuda$"):
        compile_units([A], ["sm_86"], CubinCache(tmp_path), headers=True)


@needs_nvrtc(12, 13)
def test_real_kernels(tmp_path: Path) -> None:
    units = [Unit("sums", SUM), Unit("spills", SPILL)]
    found = compile_units(units, ARCHS, CubinCache(tmp_path))
    assert found == compile_units(units, ARCHS, CubinCache(tmp_path, no_compile=True))
    assert len(found) == len(set(found.values())) == 2 * len(ARCHS)
    for arch in ARCHS:
        assert read_resources(found["sums", arch])["sum"].local_bytes == 0
        assert read_resources(found["spills", arch])["spill"].local_bytes > 0


@needs_nvrtc(13)
def test_a_real_error(tmp_path: Path) -> None:
    bad = Unit("bad", SUM.replace("float s = 0.0f", "float s = zero"))
    with pytest.raises(
        KernelCompileError, match=r'^bad for sm_86: .*"zero" is undefined'
    ) as caught:
        compile_units([bad], ["sm_86"], CubinCache(tmp_path))
    assert caught.value.source and caught.value.source.read_text() == bad.source


FUSED = 'extern "C" __global__ void k(float* x) { x[0] = x[1] * x[2] + x[3]; }'


@needs_nvrtc(13)
def test_products_and_sums_are_not_fused(tmp_path: Path) -> None:
    """An explicit fused operation is another kernel: the compiler did not choose it by itself."""
    explicit = FUSED.replace("x[1] * x[2] + x[3]", "__fmaf_rn(x[1], x[2], x[3])")
    rounded = FUSED.replace("x[1] * x[2] + x[3]", "__fadd_rn(__fmul_rn(x[1], x[2]), x[3])")
    units = [Unit("plain", FUSED), Unit("explicit", explicit), Unit("rounded", rounded)]
    found = compile_units(units, ["sm_86"], CubinCache(tmp_path))
    assert found["plain", "sm_86"] == found["rounded", "sm_86"] != found["explicit", "sm_86"]


TWICE = """
import sys
from pathlib import Path
from strata_compile.cubins.cache import CubinCache
from strata_compile.cubins.compile import Unit, compile_units
found = compile_units([Unit("u", sys.argv[2])], ["sm_86", "sm_120"], CubinCache(Path(sys.argv[1])))
sys.stdout.buffer.write(b"".join(found.values()))
"""


@needs_nvrtc(13)
def test_two_processes_compile_the_same_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWICE, str(tmp_path), SUM]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    one, two = (process.communicate()[0] for process in running)
    assert one == two and one.startswith(b"\x7fELF")
    assert [p.suffix for p in entries(tmp_path)] == [".cubin"] * 2
