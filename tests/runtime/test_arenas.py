"""Arenas: where buffers lie, what fills them, and what does not fit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter

import gguf_maker
from replayer import compile_bundle
from strata_runtime.arenas import ALIGNMENT, DTYPES, Arenas, rotation_table
from strata_runtime.bundle_format import Arena, Argument, Buffer, MemoryPlan, Rotation
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.errors import DeviceError
from strata_runtime.gguf_file import GgufFile

CONTEXT = 200


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two stages; the products of width 96 are stored in Q8_0, which is not float32 already."""
    folder = tmp_path_factory.mktemp("arenas")
    kind = GGMLQuantizationType.Q8_0
    model = gguf_maker.write_tiny_llama(folder / "m.gguf", ff=96, ftype=kind)
    return compile_bundle(folder, model, stages=2, slots=3, groups=2, context=CONTEXT)


@pytest.fixture(scope="module")
def weights(bundle: Bundle) -> GgufFile:
    return open_weights(bundle, bundle.folder)


def plan_of(**sizes: int) -> MemoryPlan:
    """Arenas of these bytes, without buffers."""
    return MemoryPlan({n: Arena(0, "weights", b, False) for n, b in sizes.items()}, {})


def test_buffers_start_at_aligned_addresses(bundle: Bundle) -> None:
    plan = bundle.manifest.memory["cpu"]
    arenas = Arenas(plan)
    for name, buffer in plan.buffers.items():
        view = arenas.buffer(name)
        assert view.data_ptr() % ALIGNMENT == 0
        assert (view.dtype, tuple(view.shape)) == (DTYPES[buffer.dtype], buffer.shape)
        assert view.is_contiguous() and view.nbytes <= buffer.bytes


@pytest.mark.parametrize("size", [1, 255, 256, 257, 4096])
def test_arenas_are_aligned_whatever_their_size(size: int) -> None:
    arenas = Arenas(plan_of(a=size, b=size, c=0))
    assert [arenas.arena(name).nbytes for name in "abc"] == [size, size, 0]
    assert [arenas.arena(name).data_ptr() % ALIGNMENT for name in "ab"] == [0, 0]


def test_arenas_are_zeroed(bundle: Bundle) -> None:
    plan = bundle.manifest.memory["cpu"]
    arenas = Arenas(plan)
    assert not any(arenas.arena(name).any() for name in plan.arenas)


def test_buffers_do_not_share_memory(bundle: Bundle) -> None:
    """Each is filled with its own number; then each still holds it."""
    plan = bundle.manifest.memory["cpu"]
    arenas = Arenas(plan)
    views = [arenas.buffer(name) for name in plan.buffers]
    for i, view in enumerate(views):
        view.fill_(i)
    assert all((view == i).all() for i, view in enumerate(views))


def test_an_argument_is_a_part_of_its_buffer() -> None:
    buffer = Buffer("a", 256, 64, "f32", (16,), None, None)
    arenas = Arenas(replace(plan_of(a=512), buffers={"x": buffer}))
    arenas.buffer("x").copy_(torch.arange(16.0))
    part = arenas.argument(Argument("x", 16, "f32", (2, 3), "whole", None))
    assert part.tolist() == [[4, 5, 6], [7, 8, 9]]
    part[1, 2] = -1
    assert arenas.buffer("x")[9] == -1
    halves = arenas.argument(Argument("x", 0, "f16", (32,), "whole", None))
    assert halves.data_ptr() == arenas.buffer("x").data_ptr()


def test_weights_are_what_the_file_dequantizes_to(bundle: Bundle, weights: GgufFile) -> None:
    plan = bundle.manifest.memory["cpu"]
    arenas = Arenas(plan)
    arenas.fill(weights)
    filled = {name: b.tensor for name, b in plan.buffers.items() if b.tensor is not None}
    assert {*filled.values()} == {*weights.tensors}
    for name, tensor in filled.items():
        assert arenas.buffer(name).numpy().tobytes() == weights.dequantize(tensor).tobytes()
    kinds = {info.ggml_type.name for info in weights.tensors.values()}
    assert kinds == {"F32", "Q8_0"}


def test_filling_touches_nothing_but_weights(bundle: Bundle, weights: GgufFile) -> None:
    plan = bundle.manifest.memory["cpu"]
    arenas = Arenas(plan)
    arenas.fill(weights)
    for name, arena in plan.arenas.items():
        assert bool(arenas.arena(name).any()) == (arena.role == "weights")


def test_the_rotation_of_a_bundle_is_the_models(bundle: Bundle, weights: GgufFile) -> None:
    plan = bundle.manifest.memory["cpu"]
    arenas = Arenas(plan)
    arenas.fill(weights)
    for stage in range(2):
        table = arenas.buffer(f"{stage}/rotation").numpy()
        expected = rotation_by_hand(CONTEXT, Rotation(10000.0, 12, 1.0, None), [1.0] * 6)
        assert table.shape == expected.shape
        assert table.tobytes() == expected.astype(np.float32).tobytes()


def rotation_by_hand(count: int, rotation: Rotation, factors: list[float]) -> np.ndarray:
    """cos and sin of position · frequency, number by number in float64."""
    out = np.empty((count, rotation.dims // 2, 2))
    for position in range(count):
        for pair, factor in enumerate(factors):
            power = math.pow(rotation.base, -2.0 * pair / rotation.dims)
            angle = position * (rotation.scale * power / factor)
            out[position, pair] = math.cos(angle), math.sin(angle)
    return out


@pytest.mark.parametrize(
    ("base", "scale", "factors"),
    [
        (10000.0, 1.0, None),
        (500000.0, 0.25, None),
        (500000.0, 1.0, [1.0, 1.5, 32.0, 0.125]),
        (10000.0, 0.5, [3.0, 1.0, 1e-3, 7.7]),
    ],
)
def test_rotation_tables(
    tmp_path: Path, base: float, scale: float, factors: list[float] | None
) -> None:
    """In float64, rounded once: at most half a unit of float32 away from the formula."""
    writer = GGUFWriter(tmp_path / "f.gguf", "llama")
    stored = np.array(factors or [1.0], np.float32)
    writer.add_tensor("rope_freqs.weight", stored)
    gguf_maker.finish(writer)
    gguf = GgufFile.open(tmp_path / "f.gguf")
    rotation = Rotation(base, 8, scale, "rope_freqs.weight" if factors else None)
    count = 3000
    buffer = Buffer("a", 0, count * 32, "f32", (count, 4, 2), None, rotation)
    found = rotation_table(buffer, rotation, gguf)
    expected = rotation_by_hand(count, rotation, stored.tolist() if factors else [1.0] * 4)
    assert found.dtype == np.float32 and found.shape == (count, 4, 2)
    half = np.spacing(np.abs(expected).astype(np.float32)) / 2
    assert (np.abs(found - expected) <= half * 1.001 + 1e-11).all()
    assert found[0].tolist() == [[1.0, 0.0]] * 4


def test_more_memory_than_the_machine_has() -> None:
    """Before anything is allocated, with both numbers."""
    message = r"^cpu: the bundle needs 1099511627777 MiB, the machine has \d+ MiB"
    with pytest.raises(DeviceError, match=message):
        Arenas(plan_of(a=1 << 60, b=1 << 20))
