"""The emulated block model itself: barriers, shuffles, memory and faults."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from emulation import ASCENDING, ORDERS, EmulationFault, Library, assemble, needs_compiler
from strata_kernels.render import HostEntry
from strata_kernels.spec import Geometry

pytestmark = needs_compiler

both_orders = pytest.mark.parametrize("order", ORDERS, ids=["ascending", "descending"])
THREADS = 64

#: Kernels that are right with BARRIER as a barrier, and race without it.
RACES = """
KERNEL reverse(const float* x, float* out) {
  SHARED(float, tile, 64);
  tile[thread_x()] = x[thread_x()];
  BARRIER();
  out[thread_x()] = tile[63 - thread_x()];
}

KERNEL tree(const float* x, float* out) {
  SHARED(float, sums, 64);
  sums[thread_x()] = x[thread_x()];
  barrier();
  for (i32 half = 32; half > 0; half /= 2) {
    if (thread_x() < half) sums[thread_x()] += sums[thread_x() + half];
    BARRIER();
  }
  out[thread_x()] = sums[0];
}

// Warp 0 makes what warp 1 takes, again and again: the second barrier is the one that is missed.
KERNEL handover(const float* x, float* out) {
  SHARED(float, box, 32);
  float sum = 0;
  for (i32 step = 0; step < 3; step++) {
    if (warp() == 0) box[lane()] = x[lane()] * float(step + 1);
    barrier();
    if (warp() == 1) sum += box[31 - lane()];
    BARRIER();
  }
  out[thread_x()] = sum;
}
"""

KERNELS = """
KERNEL places(i32* out) {
  const i32 block = block_x() + 2 * (block_y() + 3 * block_z());
  i32* mine = out + (block * block_threads() + thread_x()) * 5;
  mine[0] = block_x(); mine[1] = block_y(); mine[2] = block_z();
  mine[3] = warp(); mine[4] = lane();
}

template <class T> DEVICE void shuffles(T value, T* out) {
  out[lane()] = shuffle_xor(value, 5);
  out[32 + lane()] = shuffle_down(value, 3);
  out[64 + lane()] = shuffle(value, (lane() * 7 + 2) % 32);
}
KERNEL shuffle_all(float* f, i64* d, i32* i, i32* u, i64* l) {
  shuffles(float(lane()) + 0.5f, f);
  shuffles(double(lane()) + 0.25, reinterpret_cast<double*>(d));
  shuffles(lane() - 16, i);
  shuffles(u32(lane()) + 4000000000u, reinterpret_cast<u32*>(u));
  shuffles(u64(lane()) << 40, reinterpret_cast<u64*>(l));
}

KERNEL warp_reverse(const float* x, float* out) {
  SHARED(float, tile, 64);
  tile[thread_x()] = x[thread_x()];
  warp_barrier();
  out[thread_x()] = tile[warp() * 32 + 31 - lane()];
}

KERNEL fresh_shared(i32* out) {
  SHARED(i32, fixed, 64);
  DYNAMIC_SHARED(i32, dynamic);
  SHARED(u8, small, 3);
  i32* mine = out + (block_x() * 64 + thread_x()) * 3;
  mine[0] = fixed[thread_x()];
  mine[1] = dynamic[thread_x()];
  mine[2] = small[2];
  fixed[thread_x()] = dynamic[thread_x()] = 7;
  barrier();
  small[2] = 7;
}

KERNEL atomics(i32* count, i32* bits, i64* sums, i32* before) {
  before[thread_x()] = atomic_add(count, 1);
  atomic_add(reinterpret_cast<u32*>(bits), 1u << (thread_x() % 32));
  atomic_add(reinterpret_cast<u64*>(sums), u64(thread_x()) << 33);
  atomic_max(reinterpret_cast<u64*>(sums) + 1, u64(thread_x() * 37 % 64) << 34);
}

KERNEL too_early(float* out) { out[-2] = 0; }
"""

#: Each has a fault, and what its message says.
FAULTS = {
    "half_barrier": ("if (thread_x() < 32) barrier();", "waits at a barrier.*has ended"),
    "two_barriers": (
        "if (thread_x() < 32) barrier();\nelse barrier();",
        r"thread 0 waits at a barrier \(line \d+\), but thread 32 waits at a barrier",
    ),
    "odd_shuffle": ("if (lane() % 2) out[0] = shuffle_xor(x[0], 1);", "waits at a shuffle.*ended"),
    "two_shuffles": (
        "out[0] = lane() < 9 ? shuffle_xor(x[0], 1)\n : shuffle_xor(x[0], 1);",
        r"thread 0 waits at a shuffle.*but thread 9 waits at a shuffle",
    ),
    "mixed": (
        "if (lane() < 4) warp_barrier(); else barrier();",
        "waits at a warp barrier.*waits at a b",
    ),
    "behind": ("SHARED(float, a, 8); SHARED(float, b, 8); a[8] = x[0];", "0 bytes behind.*32"),
    "before": ("SHARED(u8, a, 5); a[-1] = 0;", "1 bytes before the array of 5 bytes"),
    "dynamic": ("DYNAMIC_SHARED(float, a);", "no dynamic shared memory"),
    "unequal": (
        "SHARED(u8, a, 8); if (lane() == 3) { SHARED(u8, c, 4); c[0] = 1; } "
        "else { SHARED(u8, c, 5); c[0] = 1; }",
        "thread 3: shared array 2 has 4 bytes",
    ),
    "large": ("SHARED(u8, a, 49153); a[0] = 1;", "49153 bytes of static shared memory"),
    "wild": ("out[i64(1) << 45] = 1;", "thread 0: access far outside"),
    "divides": ("out[0] = float(7 / i32(x[0]));", "thread 0: division by zero"),
    "deep": ("volatile u8 a[1 << 20]; for (i32 i = 0; i < 1 << 20; i++) a[i] = 1;", "overflow"),
}
PAIR = ("float", "float")

LAUNCHES = [
    HostEntry("places", ("i32",), Geometry((2, 3, 2), THREADS)),
    HostEntry("shuffle_all", ("float", "i64", "i32", "i32", "i64"), Geometry((1, 1, 1), 32)),
    HostEntry("warp_reverse", PAIR, Geometry((1, 1, 1), THREADS)),
    HostEntry("fresh_shared", ("i32",), Geometry((2, 1, 1), THREADS, 4 * THREADS)),
    HostEntry("atomics", ("i32", "i32", "i64", "i32"), Geometry((1, 1, 1), THREADS)),
    HostEntry("too_early", ("float",), Geometry((1, 1, 1), THREADS)),
]
RACE_NAMES = ("reverse", "tree", "handover")


@functools.cache
def kernels() -> Library:
    """The kernels without faults."""
    return assemble(KERNELS, LAUNCHES)


@functools.cache
def races(whole: bool) -> Library:
    """The kernels that need BARRIER, with it or without."""
    entries = [HostEntry(n, PAIR, Geometry((1, 1, 1), THREADS)) for n in RACE_NAMES]
    return assemble(RACES.replace("BARRIER();", "barrier();" if whole else ";"), entries)


@functools.cache
def faults() -> Library:
    """The kernels with faults, and one whose declaration is wrong."""
    text = [f"KERNEL {n}(const float* x, float* out) {{\n{b}\n}}" for n, (b, _) in FAULTS.items()]
    text += [f"KERNEL {n}(const float* x, float* out) {{}}" for n in ("fewer", "other")]
    geometry = Geometry((1, 1, 1), THREADS)
    entries = [HostEntry(n, PAIR, geometry) for n in FAULTS]
    entries += [HostEntry("fewer", (*PAIR, "i32"), geometry)]
    entries += [HostEntry("other", ("float", "u8"), geometry)]
    return assemble("\n".join(text), entries)


def result(lib: Library, name: str, x: torch.Tensor, order: int) -> torch.Tensor:
    """`out` of a kernel of (x, out)."""
    out = torch.full((THREADS,), torch.nan)
    lib.run(name, [x, out], order)
    return out


def race_results(name: str, x: torch.Tensor) -> torch.Tensor:
    """What a kernel of RACES means."""
    if name == "reverse":
        return x.flip(0)
    if name == "tree":
        return x.sum().expand(THREADS)
    return torch.cat([torch.zeros(32), 6 * x[:32].flip(0)])


X = torch.arange(1.0, THREADS + 1)


@both_orders
@pytest.mark.parametrize("name", RACE_NAMES)
def test_barriers(name: str, order: int) -> None:
    assert torch.equal(result(races(True), name, X, order), race_results(name, X))


@pytest.mark.parametrize("name", RACE_NAMES)
def test_a_missing_barrier_shows_in_one_of_the_orders(name: str) -> None:
    wanted = race_results(name, X)
    good = [torch.equal(result(races(False), name, X, order), wanted) for order in ORDERS]
    assert not all(good)


@both_orders
def test_places_of_threads(order: int) -> None:
    out = torch.full((2, 3, 2, THREADS, 5), -1, dtype=torch.int32)
    kernels().run("places", [out], order)
    z, y, x, t = np.meshgrid(*(np.arange(n) for n in (2, 3, 2, THREADS)), indexing="ij")
    assert np.array_equal(out.numpy(), np.stack([x, y, z, t // 32, t % 32], -1))


@both_orders
def test_shuffles(order: int) -> None:
    types = (torch.float32, torch.int64, torch.int32, torch.int32, torch.int64)
    outs = [torch.zeros(3, 32, dtype=t) for t in types]
    kernels().run("shuffle_all", outs, order)
    lanes = np.arange(32)
    sources = np.stack([lanes ^ 5, np.where(lanes < 29, lanes + 3, lanes), (lanes * 7 + 2) % 32])
    assert np.array_equal(outs[0].numpy(), sources + 0.5)
    assert np.array_equal(outs[1].numpy().view(np.float64), sources + 0.25)
    assert np.array_equal(outs[2].numpy(), sources - 16)
    assert np.array_equal(outs[3].numpy().view(np.uint32), sources + 4000000000)
    assert np.array_equal(outs[4].numpy(), sources << 40)


@both_orders
def test_warp_barrier(order: int) -> None:
    wanted = X.view(2, 32).flip(1).flatten()
    assert torch.equal(result(kernels(), "warp_reverse", X, order), wanted)


@both_orders
def test_every_block_begins_with_poisoned_shared_memory(order: int) -> None:
    out = torch.zeros(2, THREADS, 3, dtype=torch.int32)
    kernels().run("fresh_shared", [out], order)
    assert torch.equal(out, torch.tensor([-1, -1, 255], dtype=torch.int32).expand_as(out))


@both_orders
def test_atomics(order: int) -> None:
    count, bits, sums = (torch.zeros(n, dtype=torch.int32) for n in (1, 1, 4))
    before = torch.zeros(THREADS, dtype=torch.int32)
    sums = sums.view(torch.int64)
    kernels().run("atomics", [count, bits, sums, before], order)
    assert count.item() == THREADS
    assert bits.item() == -2  # every bit twice
    assert sums.tolist() == [sum(range(THREADS)) << 33, (THREADS - 1) << 34]
    wanted = torch.arange(THREADS, dtype=torch.int32)
    assert torch.equal(before, wanted if order == ASCENDING else wanted.flip(0))


@both_orders
@pytest.mark.parametrize("name", FAULTS)
def test_faults_have_messages(name: str, order: int) -> None:
    message = FAULTS[name][1] if order == ASCENDING else ""
    with pytest.raises(EmulationFault, match=rf"(?s){name}: block \(0, 0, 0\): .*{message}"):
        result(faults(), name, torch.zeros(THREADS), order)


def test_a_fault_leaves_the_library_usable() -> None:
    lib = faults()
    with pytest.raises(EmulationFault, match="ended"):
        result(lib, "half_barrier", torch.zeros(THREADS), ASCENDING)
    with pytest.raises(EmulationFault, match="far outside"):
        result(lib, "wild", torch.zeros(THREADS), ASCENDING)
    assert bool(result(lib, "divides", torch.ones(THREADS), ASCENDING)[0] == 7)


def test_declarations_are_checked() -> None:
    x = torch.zeros(THREADS)
    with pytest.raises(EmulationFault, match="has 2 parameters, 3 arguments are declared"):
        faults().run("fewer", [x, x, x.int()], ASCENDING)
    with pytest.raises(EmulationFault, match="parameter 1 points to float, declared is u8"):
        faults().run("other", [x, x], ASCENDING)


@pytest.mark.parametrize("short", [1, THREADS - 1])
def test_writes_outside_a_buffer_are_found(short: int) -> None:
    out = torch.zeros(THREADS - short)
    with pytest.raises(EmulationFault, match="argument 1 was written 0 bytes behind"):
        races(True).run("reverse", [X, out], ASCENDING)
    assert not out.any()


def test_writes_before_a_buffer_are_found() -> None:
    with pytest.raises(EmulationFault, match="argument 0 was written 5 bytes before"):
        kernels().run("too_early", [torch.zeros(1)], ASCENDING)


def test_a_source_that_does_not_compile_says_why() -> None:
    with pytest.raises(EmulationFault, match=r"(?s)\.cpp does not compile:.*nowhere"):
        assemble("KERNEL broken(float* x) { x[0] = nowhere; }", [])
