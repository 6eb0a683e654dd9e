"""The compiler itself: which one, what it makes, what it says, and what it leaves alone."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cubin_case import ARCHS, SUM, FakeNvrtc, needs_nvrtc
from strata_compile.cubins.compile import OPTIONS
from strata_compile.cubins.nvrtc import MAJORS, Nvrtc, compiler_for
from strata_compile.cubins.wheels import cuda_headers
from strata_compile.errors import KernelCompileError

NVRTC_12 = FakeNvrtc((12, 9), "12.9.86", frozenset({70, 75, 86, 121}))
NVRTC_13 = FakeNvrtc((13, 5), "13.5.37", frozenset({75, 86, 120}))

HALF = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void half_sum(__half* x, __nv_bfloat16* y) {
  x[0] = __hadd(x[1], x[2]);
  y[0] = __float2bfloat16(__half2float(x[0]));
}
"""


def install(monkeypatch: pytest.MonkeyPatch, *compilers: FakeNvrtc) -> None:
    """Just these compilers."""
    by_major = {compiler.version[0]: compiler for compiler in compilers}
    monkeypatch.setattr(Nvrtc, "load", staticmethod(by_major.get))


@pytest.mark.parametrize(
    ("arch", "installed", "expected"),
    [
        ("sm_86", (NVRTC_12, NVRTC_13), NVRTC_13),
        ("sm_70", (NVRTC_12, NVRTC_13), NVRTC_12),
        ("sm_86", (NVRTC_12,), NVRTC_12),
        ("sm_86", (NVRTC_13,), NVRTC_13),
        ("sm_121", (NVRTC_12, NVRTC_13), NVRTC_12),
        ("sm_120a", (NVRTC_13,), NVRTC_13),
    ],
)
def test_which_compiler(
    arch: str,
    installed: tuple[FakeNvrtc, ...],
    expected: FakeNvrtc,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, *installed)
    assert compiler_for(arch) is expected


@pytest.mark.parametrize(
    ("arch", "installed", "message"),
    [
        ("sm_70", (NVRTC_13,), "sm_70 needs NVRTC 12: install the extra cuda12"),
        ("sm_70", (), "sm_70 needs NVRTC 12: install the extra cuda12"),
        ("sm_86", (), "sm_86 needs NVRTC: install the extra cuda"),
        ("sm_90", (NVRTC_13,), "sm_90 is unknown to NVRTC 13.5.37: sm_75, sm_86, sm_120"),
        (
            "sm_60",
            (NVRTC_12, NVRTC_13),
            "sm_60 is unknown to NVRTC 13.5.37 and 12.9.86: sm_70, sm_75, sm_86, sm_120, sm_121",
        ),
        ("gfx90a", (NVRTC_13,), "gfx90a: not an architecture, as sm_86 is one"),
        ("sm_86 ", (NVRTC_13,), "sm_86 : not an architecture, as sm_86 is one"),
        ("compute_86", (NVRTC_13,), "compute_86: not an architecture, as sm_86 is one"),
    ],
)
def test_no_compiler(
    arch: str, installed: tuple[FakeNvrtc, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *installed)
    with pytest.raises(KernelCompileError) as caught:
        compiler_for(arch)
    assert str(caught.value) == message


@needs_nvrtc(12, 13)
def test_two_versions_in_one_process() -> None:
    twelve, thirteen = Nvrtc.load(12), Nvrtc.load(13)
    assert twelve and thirteen and MAJORS == (13, 12)
    assert (twelve.version[0], thirteen.version[0]) == (12, 13)
    assert 70 in twelve.supported and 70 not in thirteen.supported
    assert all(n.build.startswith("{}.{}".format(*n.version)) for n in (twelve, thirteen))
    assert Nvrtc.load(13) is thirteen
    assert compiler_for("sm_70") is twelve and compiler_for("sm_120") is thirteen


@needs_nvrtc(12, 13)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture(arch: str) -> None:
    cubin = compiler_for(arch).compile(SUM, "kernel.cu", arch, OPTIONS)
    assert cubin[:4] == b"\x7fELF" and b".text.sum\0" in cubin
    flags = int.from_bytes(cubin[48:52], "little")  # the architecture stands in byte 0 or 1
    assert int(arch[3:]) in (flags & 0xFF, flags >> 8 & 0xFF)


@needs_nvrtc(13)
def test_errors_carry_the_whole_log() -> None:
    source = 'extern "C" __global__ void k(int* x) {\n  int unused;\n  x[0] = 1 +;\n  y = 2;\n}\n'
    with pytest.raises(KernelCompileError) as caught:
        compiler_for("sm_86").compile(source, "kernel.cu", "sm_86", OPTIONS)
    assert str(caught.value) == "kernel.cu(3): error: expected an expression"
    assert "kernel.cu(4): error" in caught.value.log and '"y" is undefined' in caught.value.log
    assert caught.value.source is None


@needs_nvrtc(13)
@pytest.mark.parametrize(
    ("arch", "option", "said"),
    [("sm_86", "--no-such", "unrecognized option --no-such"), ("sm_70", "-I.", "invalid value")],
)
def test_what_the_compiler_does_not_know(arch: str, option: str, said: str) -> None:
    nvrtc = Nvrtc.load(13)
    assert nvrtc
    with pytest.raises(KernelCompileError, match=said) as caught:
        nvrtc.compile(SUM, "kernel.cu", arch, (option,))
    assert "\n" not in str(caught.value) and str(caught.value) in caught.value.log


@needs_nvrtc(13)
def test_an_error_behind_a_warning() -> None:
    body = "__shared__ int error[99999]; int unused; error[threadIdx.x] = x[0]; x[1] = error[x[2]];"
    with pytest.raises(KernelCompileError) as caught:
        compiler_for("sm_86").compile(
            f'extern "C" __global__ void k(int* x) {{ {body} }}', "kernel.cu", "sm_86"
        )
    assert "warning" in caught.value.log
    assert re.match("ptxas error .* too much shared data", str(caught.value))


@needs_nvrtc(13)
def test_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    source = 'extern "C" __global__ void k() { int unused; }'
    with caplog.at_level(logging.DEBUG, "strata_compile.cubins.nvrtc"):
        assert compiler_for("sm_86").compile(source, "kernel.cu", "sm_86").startswith(b"\x7fELF")
    assert "kernel.cu for sm_86" in caplog.text and '"unused" was declared' in caplog.text


@needs_nvrtc(12, 13)
@pytest.mark.parametrize("arch", ["sm_70", "sm_86"])
def test_headers_of_cuda(arch: str) -> None:
    nvrtc = compiler_for(arch)
    headers = cuda_headers(nvrtc.version[0])
    if headers is None:
        pytest.skip("CUDA's headers are not installed")
    cubin = nvrtc.compile(HALF, "kernel.cu", arch, OPTIONS + headers.options)
    assert b".text.half_sum\0" in cubin
    with pytest.raises(KernelCompileError, match=r"cuda_fp16\.h"):
        nvrtc.compile(HALF, "kernel.cu", arch, OPTIONS)


HASHES = """
import hashlib, sys
from strata_compile.cubins.compile import OPTIONS
from strata_compile.cubins.nvrtc import compiler_for
for arch in sys.argv[2:]:
    cubin = compiler_for(arch).compile(sys.argv[1], "kernel.cu", arch, OPTIONS)
    print(arch, hashlib.sha256(cubin).hexdigest())
"""


def hashes_in_another_process(folder: Path, seed: str, **variables: str) -> list[str]:
    folder.mkdir()
    env = {**os.environ, "HOME": str(folder), "PYTHONHASHSEED": seed, **variables}
    command = [sys.executable, "-c", HASHES, SUM, *ARCHS]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert not list(folder.iterdir())  # nothing is left behind
    return done.stdout.splitlines()


@needs_nvrtc(12, 13)
def test_equal_bytes_in_two_processes_and_in_threads(tmp_path: Path) -> None:
    one = hashes_in_another_process(tmp_path / "one", "1", TZ="UTC")
    two = hashes_in_another_process(tmp_path / "two", "2", TZ="Asia/Tokyo", LC_ALL="C")

    def compiled(arch: str) -> str:
        cubin = compiler_for(arch).compile(SUM, "kernel.cu", arch, OPTIONS)
        return f"{arch} {hashlib.sha256(cubin).hexdigest()}"

    with ThreadPoolExecutor(4) as pool:
        here = list(pool.map(compiled, ARCHS))
    assert one == two == here
    assert len({line.split()[1] for line in here}) == len(ARCHS)


@needs_nvrtc(12, 13)
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux' loader")
def test_the_driver_is_not_even_looked_for(tmp_path: Path) -> None:
    env = {**os.environ, "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "files")}
    command = [sys.executable, "-c", HASHES, SUM, "sm_70", "sm_86"]
    subprocess.run(command, env=env, capture_output=True, check=True)
    asked = "".join(file.read_text(errors="replace") for file in tmp_path.iterdir())
    assert "libnvrtc.so.12" in asked and "libnvrtc.so.13" in asked
    assert "libcuda.so" not in asked
