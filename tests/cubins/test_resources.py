"""Registers, shared and local bytes: hand-made files, damaged files, and what the compiler says."""

from __future__ import annotations

import logging
import random
import re

import pytest

from cubin_case import ARCHS, SPILL, SUM, Kernel, make_cubin, needs_nvrtc
from strata_compile.cubins.nvrtc import Nvrtc, compiler_for
from strata_compile.cubins.resources import Resources, read_resources
from strata_runtime.errors import BundleError

CALLS = """
__device__ __noinline__ float pick(const float* x, int n) {
  float a[16];
  for (int i = 0; i < 16; i++) a[i] = x[i] * i;
  return a[n & 15];
}
extern "C" __global__ void calls(float* x, int n) { x[threadIdx.x] = pick(x, n); }
extern "C" __global__ void nothing() {}
extern "C" __global__ void large(float* x) {
  __shared__ float all[12288];
  all[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = all[threadIdx.x ^ 1];
}
"""
RECURSION = """
__device__ __noinline__ int down(int x, int* y) {
  int a[8];
  for (int i = 0; i < 8; i++) a[i] = y[i];
  return x < 2 ? a[x & 7] : down(x - 1, y) + down(x - 2, a);
}
extern "C" __global__ void deep(int* x) { x[0] = down(x[1], x); }
"""


def test_kernels_of_a_file() -> None:
    cubin = make_cubin(
        {
            "plain": Kernel(registers=22),
            "arrays": Kernel(registers=255, frame=256, stack=256),
            "calls": Kernel(registers=24, frame=64, stack=160, shared=0),
            "shared": Kernel(registers=12, shared=49152),
            "silent": Kernel(registers=4, frame=None, stack=None),
            "recursive": Kernel(registers=25, frame=8, stack=0xFFFFFFFF),
            "called": Kernel(registers=9, frame=8, entry=False),
        }
    )
    assert read_resources(cubin) == {
        "plain": Resources(22, 0, 0),
        "arrays": Resources(255, 0, 256),
        "calls": Resources(24, 0, 160),
        "shared": Resources(12, 49152, 0),
        "silent": Resources(4, 0, 0),
        "recursive": Resources(25, 0, 8),
    }


def test_what_the_system_keeps_does_not_count() -> None:
    kernels = {"a": Kernel(shared=1024 + 128), "b": Kernel(shared=1024), "c": Kernel()}
    found = read_resources(make_cubin(kernels, system_shared=True))
    assert {name: r.shared_bytes for name, r in found.items()} == {"a": 128, "b": 0, "c": 0}


def test_a_file_without_kernels() -> None:
    assert read_resources(make_cubin({})) == {}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"// PTX" * 40, b"\0" * 64])
def test_other_files(data: bytes) -> None:
    with pytest.raises(BundleError, match=r"^damaged cubin: .*$"):
        read_resources(data)


def test_another_machine_is_refused() -> None:
    cubin = bytearray(make_cubin({"a": Kernel()}))
    cubin[18:20] = (62).to_bytes(2, "little")
    with pytest.raises(BundleError, match="not an ELF file for CUDA"):
        read_resources(bytes(cubin))


def test_a_kernel_without_registers_is_damaged() -> None:
    with pytest.raises(BundleError, match="damaged cubin: a has no number of registers"):
        read_resources(make_cubin({"a": Kernel(registers=None)}))


def check_damaged(cubin: bytes) -> bool:
    """True where the damage is noticed; anything but BundleError ends the test."""
    try:
        found = read_resources(cubin)
    except BundleError as error:
        assert str(error).startswith("damaged cubin: ") and "\n" not in str(error)
        return True
    assert all(isinstance(r, Resources) for r in found.values())
    return False


def test_every_truncation_is_noticed() -> None:
    cubin = make_cubin({"a": Kernel(frame=8, shared=64), "b": Kernel(entry=False)})
    assert not check_damaged(cubin)
    assert all(check_damaged(cubin[:size]) for size in range(len(cubin)))


def test_any_damaged_byte_is_a_bundle_error_or_harmless() -> None:
    cubin = make_cubin({"a": Kernel(frame=8, shared=64), "b": Kernel(entry=False)}, True)
    noticed = 0
    for place in range(len(cubin)):
        for mask in (0x01, 0x80, 0xFF):
            changed = bytearray(cubin)
            changed[place] ^= mask
            noticed += check_damaged(bytes(changed))
    assert noticed > 100


@needs_nvrtc(13)
def test_damage_in_a_real_file() -> None:
    cubin, rng = compiler_for("sm_90").compile(SUM, "k.cu", "sm_90"), random.Random(1)
    assert all(check_damaged(cubin[:n]) for n in rng.sample(range(len(cubin) // 2), 50))
    for _ in range(300):
        changed = bytearray(cubin)
        for _ in range(8):
            changed[rng.randrange(len(cubin))] = rng.randrange(256)
        check_damaged(bytes(changed))


def said_by_the_compiler(log: str) -> dict[str, tuple[int, int, int]]:
    """What `--verbose` prints of each kernel: registers, shared bytes, bytes of its own frame."""
    found: dict[str, tuple[int, int, int]] = {}
    for name, text in re.findall(r"Compiling entry function '(\w+)'(.*?Used [^\n]*)", log, re.S):
        frame, registers = re.search(r"(\d+) bytes stack", text), re.search(r"Used (\d+)", text)
        shared = re.search(r"(\d+) bytes smem", text)
        assert frame and registers
        found[name] = (int(registers[1]), int(shared[1]) if shared else 0, int(frame[1]))
    return found


@needs_nvrtc(12, 13)
@pytest.mark.parametrize(
    ("major", "arch"), [(13, arch) for arch in ARCHS[1:]] + [(12, arch) for arch in ARCHS]
)
def test_as_the_compiler_says(major: int, arch: str, caplog: pytest.LogCaptureFixture) -> None:
    nvrtc = Nvrtc.load(major)
    assert nvrtc
    with caplog.at_level(logging.DEBUG, "strata_compile.cubins.nvrtc"):
        cubin = nvrtc.compile(SUM + CALLS + SPILL, "k.cu", arch, ("--ptxas-options=--verbose",))
    said, found = said_by_the_compiler(caplog.text), read_resources(cubin)
    assert said.keys() == found.keys() == {"sum", "calls", "nothing", "large", "spill"}
    for name, (registers, shared, frame) in said.items():
        assert (found[name].registers, found[name].shared_bytes) == (registers, shared), name
        assert found[name].local_bytes >= frame, name
    assert found["sum"].shared_bytes == 128 and found["large"].shared_bytes == 49152
    assert found["sum"].local_bytes == found["nothing"].local_bytes == 0
    assert found["calls"].local_bytes >= 64  # the array of the function that it calls
    assert found["spill"].local_bytes >= 4 * (96 - 64) and found["spill"].registers <= 64


@needs_nvrtc(13)
def test_recursion_has_no_bound() -> None:
    found = read_resources(compiler_for("sm_86").compile(RECURSION, "k.cu", "sm_86"))
    assert found.keys() == {"deep"} and found["deep"].local_bytes < 1024
