"""The memory plan of tiny models: sizes by hand, budgets, planted faults, brute force."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from compile_case import Passes, run_passes
from strata_compile.errors import MemoryPlanError
from strata_compile.lower.calls import LoweredProgram, Scratch
from strata_compile.memory.offsets import ALIGNMENT, Layout, aligned
from strata_compile.memory.place import place_programs
from strata_compile.memory.plan import ROLES, PlannedMemory
from strata_kernels.spec import CHUNK
from strata_kernels.table import LAYOUT, ROW_LIMIT
from strata_runtime.bundle_format import Buffer, Call, MemoryPlan
from strata_runtime.records import encode

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB, LAYERS = 48, 4, 2, 12, 80, 133, 3
KV = KV_HEADS * HEAD_DIM
SLOTS, GROUPS, CONTEXT, PROMPT = 4, 2, 200, 64
CHUNKS = 4
SIZES = {"f32": 4, "f16": 2, "i32": 4, "i64": 8}
PLAN = f"slots: {SLOTS}\ngroups: {GROUPS}\ncontext: {CONTEXT}\nprompt: {{sizes: [16, {PROMPT}]}}\n"
#: A layer's tensors in float32.
LAYER = (
    *((WIDTH,), (WIDTH, WIDTH), (KV, WIDTH), (KV, WIDTH), (WIDTH, WIDTH)),
    *((WIDTH,), (FF, WIDTH), (FF, WIDTH), (WIDTH, FF)),
)


def planned(folder: Path, lines: str = "stages: 2\n", **tiny: Any) -> PlannedMemory:
    return passes(folder, lines, **tiny).memory


def passes(folder: Path, lines: str, **tiny: Any) -> Passes:
    return run_passes(folder, PLAN + lines, layers=LAYERS, **tiny)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> PlannedMemory:
    return planned(tmp_path_factory.mktemp("two"))


def bytes_of(*shape: int, size: int = 4) -> int:
    count = 1
    for n in shape:
        count *= n
    return count * size


def stacked(*sizes: int) -> int:
    return sum(aligned(size) for size in sizes)


def arena_bytes(memory: PlannedMemory) -> dict[str, int]:
    return {name: arena.bytes for name, arena in memory.plans["cpu"].arenas.items()}


def test_arenas_by_hand(memory: PlannedMemory) -> None:
    layer = stacked(*(bytes_of(*shape) for shape in LAYER))
    embedding, norm = bytes_of(VOCAB, WIDTH), bytes_of(WIDTH)
    rotation = bytes_of(CONTEXT, HEAD_DIM // 2, 2)
    cells = bytes_of(SLOTS, CHUNKS, KV_HEADS, CHUNK, HEAD_DIM, size=2)
    tokens = bytes_of(SLOTS, CHUNKS, CHUNK)
    handoff = bytes_of(GROUPS * ROW_LIMIT + 2 * PROMPT, WIDTH)
    mask = bytes_of(GROUPS * ROW_LIMIT, -(-VOCAB // 32))
    bias, verdict = bytes_of(SLOTS, VOCAB), bytes_of(GROUPS, ROW_LIMIT, 4)
    table = bytes_of(LAYOUT.words(PROMPT))
    expected = {
        "0/weights": 2 * layer + stacked(embedding, rotation),
        "1/weights": layer + stacked(embedding, norm, rotation),  # the head is the embedding
        "0/cells": 2 * 2 * aligned(cells),
        "1/cells": 2 * aligned(cells) + aligned(tokens),
        "0/contexts": aligned(handoff),
        "1/contexts": stacked(bias, mask),
        "1/answers": aligned(verdict),
        "0/tables": stacked(4, table),
        "1/tables": stacked(4, table),
        "0/ring": aligned(64 * table),
        "1/ring": aligned(64 * table),
    }
    found = arena_bytes(memory)
    assert {name: found[name] for name in expected} == expected
    assert found.keys() - expected.keys() == {"0/scratch", "1/scratch"}


def test_arenas_have_their_stage_role_and_side(memory: PlannedMemory) -> None:
    assert list(memory.plans["cpu"].arenas) == [
        f"{stage}/{role}"
        for stage in (0, 1)
        for role in ROLES
        if role != "states" and (stage, role) != (0, "answers")
    ]
    for name, arena in memory.plans["cpu"].arenas.items():
        assert name == f"{arena.stage}/{arena.role}"
        assert arena.host == (arena.role in ("ring", "answers"))
        assert arena.bytes > 0 and arena.bytes % ALIGNMENT == 0
    sizes = arena_bytes(memory)
    device = sum(
        size for name, size in sizes.items() if name.startswith("0/") and "ring" not in name
    )
    assert memory.plans["cpu"].stage_bytes(0) == device
    assert memory.plans["cpu"].stage_bytes(1, host=True) == sizes["1/ring"] + sizes["1/answers"]


def test_scratch_is_that_of_the_largest_program(memory: PlannedMemory) -> None:
    for stage in (0, 1):
        sizes = [memory.scratch[p.name].bytes for p in memory.programs.programs if p.stage == stage]
        assert arena_bytes(memory)[f"{stage}/scratch"] == max(sizes)
        assert memory.plans["cpu"].buffers[f"{stage}/scratch"].bytes == max(sizes)


def test_buffers_are_whole_aligned_and_apart(memory: PlannedMemory) -> None:
    ends: dict[str, int] = {}
    for name, b in memory.plans["cpu"].buffers.items():
        assert b.offset % ALIGNMENT == 0 and b.offset >= ends.get(b.arena, 0), name
        assert b.bytes == bytes_of(*b.shape, size=SIZES[b.dtype]), name
        ends[b.arena] = b.offset + b.bytes
        assert name.split("/")[0] == b.arena.split("/")[0]
    assert {arena: aligned(end) for arena, end in ends.items()} == arena_bytes(memory)


def test_each_weight_stands_once_in_a_stage_that_reads_it(memory: PlannedMemory) -> None:
    tensors = [
        (name.split("/")[0], b.tensor)
        for name, b in memory.plans["cpu"].buffers.items()
        if b.tensor
    ]
    assert len(set(tensors)) == len(tensors)
    assert [stage for stage, tensor in tensors if tensor == "token_embd.weight"] == ["0", "1"]
    assert [s for s, tensor in tensors if tensor == "blk.2.ffn_up.weight"] == ["1"]
    rotations = [name for name, b in memory.plans["cpu"].buffers.items() if b.rotation]
    assert rotations == ["0/rotation", "1/rotation"]


def test_cells_in_f16_take_half(tmp_path: Path) -> None:
    half, full = (planned(tmp_path, f"kv: {kv}\n").plans["cpu"].buffers for kv in ("f16", "f32"))
    cells = [name for name in full if ".k." in name or ".v." in name]
    assert len(cells) == 2 * LAYERS
    for name in cells:
        assert (half[name].dtype, full[name].dtype) == ("f16", "f32")
        assert 2 * half[name].bytes == full[name].bytes
    for name in full.keys() - set(cells) - {"0/scratch"}:
        assert half[name].bytes == full[name].bytes


def test_slots_and_context_scale_cells_only_as_they_should(tmp_path: Path) -> None:
    one = planned(tmp_path, "stages: 2\n")
    more = run_passes(tmp_path, PLAN.replace("slots: 4", "slots: 8") + "stages: 2\n", layers=LAYERS)
    few, many = arena_bytes(one), arena_bytes(more.memory)
    assert many["0/cells"] == 2 * few["0/cells"]
    for role in ("weights", "scratch", "tables", "ring"):
        assert many[f"0/{role}"] == few[f"0/{role}"]


def budget(first: int, second: int) -> str:
    return (
        f"stages:\n - {{layers: 0-1, device: cuda:0, memory: {first}B}}\n"
        f" - {{layers: 2, device: cuda:1, memory: {second}B}}\n"
    )


def test_a_budget_is_met_to_the_byte(tmp_path: Path, memory: PlannedMemory) -> None:
    needed = [memory.plans["cpu"].stage_bytes(stage) for stage in (0, 1)]
    assert planned(tmp_path, budget(*needed)).plans == memory.plans
    with pytest.raises(MemoryPlanError) as caught:
        planned(tmp_path, budget(needed[0], needed[1] - 1))
    assert (caught.value.device, caught.value.short_bytes) == ("cuda:1", 1)
    assert "stage 1 (layers 2-2" in str(caught.value) and "1 MiB short" in str(caught.value)


def test_a_budget_too_small_says_which_device_and_how_much(tmp_path: Path) -> None:
    large = {"layers": LAYERS, "vocab": 60_000}
    free = run_passes(tmp_path, "stages: [{layers: 0-1}, {layers: 2}]\n", **large)
    short = free.memory.plans["cpu"].stage_bytes(0) - 1000
    with pytest.raises(MemoryPlanError) as caught:
        run_passes(tmp_path, budget(1000, 1 << 40), **large)
    error, line = caught.value, str(caught.value)
    assert (error.device, error.short_bytes) == ("cuda:0", short)
    assert f"is {-(-short // 2**20)} MiB short" in line and line.isprintable()


def test_the_line_alone_says_which_device_is_short(tmp_path: Path) -> None:
    with pytest.raises(MemoryPlanError, match="cuda:0"):
        planned(tmp_path, budget(1000, 1 << 40))


def replaced(memory: PlannedMemory, name: str, **change: Any) -> PlannedMemory:
    """The memory with one buffer that differs."""
    buffers = dict(memory.plans["cpu"].buffers)
    buffers[name] = dataclasses.replace(buffers[name], **change)
    return dataclasses.replace(
        memory, plans={"cpu": MemoryPlan(memory.plans["cpu"].arenas, buffers)}
    )


def test_verify_finds_buffers_that_overlap(memory: PlannedMemory) -> None:
    later = memory.plans["cpu"].buffers["1/cells.v.2"]
    with pytest.raises(AssertionError, match=r"1/cells\.v\.2 overlaps"):
        replaced(memory, "1/cells.v.2", offset=later.offset - 256).verify()
    with pytest.raises(AssertionError, match="overlaps"):
        replaced(memory, "1/cells.k.2", bytes=later.offset + 1).verify()


def test_verify_finds_a_buffer_that_leaves_its_arena(memory: PlannedMemory) -> None:
    last = max((b for b in memory.plans["cpu"].buffers.values() if b.arena == "0/cells"), key=_end)
    (name,) = (n for n, b in memory.plans["cpu"].buffers.items() if b is last)
    size = memory.plans["cpu"].arenas["0/cells"].bytes - last.offset + 1
    with pytest.raises(AssertionError, match=f"{name} leaves 0/cells"):
        replaced(memory, name, bytes=size).verify()


def _end(buffer: Buffer) -> int:
    return buffer.offset + buffer.bytes


def test_verify_finds_scratch_that_overlaps(memory: PlannedMemory) -> None:
    name = "0.exec.r3"
    layout = memory.scratch[name]
    moved = {**layout.offsets, "blk.0.attn_k": layout.offsets["blk.0.attn_v"]}
    scratch = {**memory.scratch, name: Layout(moved, layout.bytes)}
    with pytest.raises(AssertionError, match=r"blk\.0\.attn_[kv] and blk\.0\.attn_[kv] overlap"):
        dataclasses.replace(memory, scratch=scratch).verify()


def test_verify_finds_scratch_that_leaves_its_buffer(memory: PlannedMemory) -> None:
    with pytest.raises(AssertionError, match=r"0/scratch|0\.exec"):
        replaced(memory, "0/scratch", bytes=256).verify()


def alive(program: LoweredProgram, step: int) -> dict[str, int]:
    """Bytes of the values that this call touches, or that wait between two calls, by name."""
    touched: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for i, call in enumerate(program.calls):
        for arg in call.args:
            operand = call.operands[arg.name]
            if isinstance(operand, Scratch):
                touched.setdefault(operand.name, []).append(i)
                sizes[operand.name] = bytes_of(*arg.shape, size=SIZES[arg.dtype])
    return {n: sizes[n] for n, steps in touched.items() if min(steps) <= step <= max(steps)}


def test_scratch_values_alive_at_one_call_never_overlap(memory: PlannedMemory) -> None:
    for program in memory.programs.programs:
        layout = memory.scratch[program.name]
        for step in range(len(program.calls)):
            end = 0
            for name, size in sorted(
                alive(program, step).items(), key=lambda x: layout.offsets[x[0]]
            ):
                assert layout.offsets[name] >= end, (program.name, step, name)
                end = layout.offsets[name] + size
            assert end <= layout.bytes


def ranges(call: Call) -> list[tuple[str, int, int]]:
    """Scratch ranges of a placed call's arguments."""
    return [
        (a.buffer, a.offset, a.offset + bytes_of(*a.shape, size=SIZES[a.dtype]))
        for a in call.args.values()
        if a.buffer.endswith("/scratch")
    ]


def test_placed_programs_say_where_every_argument_lies(memory: PlannedMemory) -> None:
    placed = place_programs(memory)
    assert [f"{p.stage}.{p.name}" for p in placed] == [p.name for p in memory.programs.programs]
    for program, lowered in zip(placed, memory.programs.programs, strict=True):
        assert [c.kernel for c in program.calls] == [c.spec.name for c in lowered.calls]
        for call, low in zip(program.calls, lowered.calls, strict=True):
            assert call.params == encode(low.params)
            for arg in low.args:
                place = call.args[arg.name]
                buffer = memory.plans["cpu"].buffers[place.buffer]
                size = bytes_of(*place.shape, size=SIZES[place.dtype])
                assert place.offset + size <= buffer.bytes
                assert (place.offset + buffer.offset) % ALIGNMENT == 0
                assert place.dtype == buffer.dtype or place.buffer.endswith("/scratch")
                assert place.reads == (arg.reads.value if arg.reads else None)
                assert place.writes == (arg.writes.value if arg.writes else None)
                assert min(place.shape) > 0
            own = sorted(ranges(call), key=lambda r: r[1])
            assert all(a[2] <= b[1] for a, b in pairwise(own))


def test_describe_lists_arenas_and_buffers(memory: PlannedMemory) -> None:
    arenas, buffers = memory.describe().split("\n\n")
    names = [line.split()[0] for line in arenas.splitlines()]
    assert names == ["cpu", *memory.plans["cpu"].arenas]
    assert [line.split()[0] for line in buffers.splitlines()] == list(memory.plans["cpu"].buffers)
