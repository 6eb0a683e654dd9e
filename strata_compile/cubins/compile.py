"""Units and architectures to cubins: from the cache, else compiled in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from strata_compile.cubins.cache import CubinCache, entry_key
from strata_compile.cubins.nvrtc import Nvrtc, compiler_for
from strata_compile.cubins.wheels import cuda_headers
from strata_compile.errors import KernelCompileError

#: The same for every unit. A product and a sum are fused where the source says so, never by the
#: compiler's choice; division, square root and small numbers are IEEE's. Not here: `--restrict`
#: (operands may be the same buffer), `-lineinfo` (paths in the cubin), `--use_fast_math`.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")

#: What every source is called: C++ derives names from it, and the unit's name is not in the key.
SOURCE_NAME = "kernel.cu"


@dataclass(frozen=True)
class Unit:
    """A translation unit: its name in messages, and its CUDA source."""

    name: str
    source: str


@dataclass(frozen=True)
class _Job:
    unit: Unit
    arch: str
    nvrtc: Nvrtc
    options: tuple[str, ...]
    key: str

    def __str__(self) -> str:
        return f"{self.unit.name} for {self.arch}"


def compile_units(
    units: Sequence[Unit],
    archs: Sequence[str],
    cache: CubinCache,
    report: Callable[[str], None] = lambda line: None,
    *,
    headers: bool = False,
) -> dict[tuple[str, str], bytes]:
    """(unit, architecture) to cubin; equal input gives equal bytes, on any machine.

    `report` hears of each compiled cubin, in the caller's thread; `headers` lets sources include
    CUDA's headers. KernelCompileError for a missing compiler, for a source with errors (the first
    one in order, with the log and the written source), and for a miss with `no_compile`.
    """
    assert len({unit.name for unit in units}) == len(units), "a unit's name stands for its cubins"
    places = {
        (unit.name, job.arch): job
        for arch in archs
        for unit, job in zip(units, _jobs(units, arch, headers), strict=True)
    }
    jobs: dict[str, _Job] = {}  # equal sources are compiled once
    for job in places.values():
        jobs.setdefault(job.key, job)
    kept = {key: cache.get(key) for key in jobs}
    found = {key: cubin for key, cubin in kept.items() if cubin is not None}
    missing = [job for key, job in jobs.items() if key not in found]
    if missing and cache.no_compile:
        names = ", ".join(map(str, missing))
        raise KernelCompileError(f"STRATA_NO_COMPILE is set, and not compiled before: {names}")
    found |= _compile_all(missing, cache, report)
    return {place: found[job.key] for place, job in places.items()}


def _jobs(units: Sequence[Unit], arch: str, headers: bool) -> list[_Job]:
    nvrtc = compiler_for(arch)
    folders, wheels = _include(nvrtc, arch) if headers else ((), ())
    keys = [entry_key(unit.source, OPTIONS + wheels, arch, nvrtc.build) for unit in units]
    return [_Job(u, arch, nvrtc, OPTIONS + folders, k) for u, k in zip(units, keys, strict=True)]


def _include(nvrtc: Nvrtc, arch: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The headers' folders as options, and what stands for their content in a key."""
    major = nvrtc.version[0]
    found = cuda_headers(major)
    if found is None:
        extra = "cuda12" if major == 12 else "cuda"
        raise KernelCompileError(f"{arch} needs CUDA {major}'s headers: install the extra {extra}")
    return found.options, found.wheels


def _compile_all(
    jobs: Collection[_Job], cache: CubinCache, report: Callable[[str], None]
) -> dict[str, bytes]:
    """The long ones first, so that no core waits for one at the end."""
    done: dict[str, bytes] = {}
    pool = ThreadPoolExecutor(os.cpu_count(), "nvrtc")  # NVRTC runs without Python's lock
    try:
        ordered = sorted(jobs, key=lambda job: -len(job.unit.source))
        futures = [(job, pool.submit(_compile, job, cache)) for job in ordered]
        for job, future in futures:
            done[job.key] = future.result()
            report(f"{job} ({len(done)} of {len(jobs)})")
    finally:
        pool.shutdown(cancel_futures=True)
    return done


def _compile(job: _Job, cache: CubinCache) -> bytes:
    try:
        cubin = job.nvrtc.compile(job.unit.source, SOURCE_NAME, job.arch, job.options)
    except KernelCompileError as error:
        path = cache.keep_failed(f"{job.unit.name}.{job.arch}.cu", job.unit.source)
        raise KernelCompileError(f"{job}: {error.args[0]}", log=error.log, source=path) from error
    cache.put(job.key, cubin)
    return cubin
