"""Programs of stages: names and number, what each kind holds, and that every argument is bound."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from compile_case import Passes, run_passes
from strata_compile.lower.calls import (
    LoweredCall,
    LoweredProgram,
    Named,
    Operand,
    Programs,
    Scratch,
    call,
)
from strata_compile.model.ops import weights_of
from strata_kernels import embed, rmsnorm
from strata_kernels.registry import KERNELS
from strata_kernels.table import ROW_LIMIT, Kind

LAYERS, STAGES = 3, 2
SIZES = (16, 64)
PLAN = "stages: 2\nprompt: {sizes: [16, 64]}\n"
HEAD_KERNELS = {"logits_hash", "sample", "verdict"}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Passes:
    return lowered(tmp_path_factory.mktemp("case"), "context: 200\n")


def lowered(folder: Path, lines: str = "", **tiny: Any) -> Passes:
    return run_passes(folder, PLAN + lines, layers=LAYERS, tied=False, **tiny)


def names(programs: Programs) -> list[str]:
    return [p.name for p in programs.programs]


def kernels(program: LoweredProgram) -> list[str]:
    return [c.spec.name for c in program.calls]


def written(program: LoweredProgram) -> set[str]:
    """Full names of the buffers that a program writes."""
    operands = ((a, c.operands[a.name]) for c in program.calls for a in c.args)
    return {o.full_name for a, o in operands if a.writes and isinstance(o, Named)}


def weights(program: LoweredProgram) -> set[str]:
    """Names of the tensors that a program reads."""
    operands = (o for c in program.calls for o in c.operands.values())
    return {o.tensor.name for o in operands if isinstance(o, Named) and o.tensor}


def test_names_and_number(case: Passes) -> None:
    assert names(case.programs) == [
        f"{stage}.{name}"
        for stage in range(STAGES)
        for name in (
            *(f"exec.r{rows}" for rows in range(1, ROW_LIMIT + 1)),
            *(f"prompt.r{rows}" for rows in SIZES),
            f"copy.r{SIZES[-1]}",
        )
    ]
    for program in case.programs.programs:
        assert program.name == f"{program.stage}.{program.kind.name.lower()}.r{program.rows}"


def test_no_commit_where_nothing_is_carried_as_state(case: Passes) -> None:
    kinds = Counter(p.kind for p in case.programs.programs)
    assert kinds == {Kind.EXEC: 8 * STAGES, Kind.PROMPT: 2 * STAGES, Kind.COPY: STAGES}


@pytest.mark.parametrize(
    "lines",
    ["slots: 16\ngroups: 2\n", "slots: 4\ngroups: 4\n", "context: 512\n", "kv: f32\n"],
)
def test_programs_do_not_depend_on_slots_groups_context_and_kv(
    case: Passes, tmp_path: Path, lines: str
) -> None:
    other = lowered(tmp_path, lines)
    assert names(other.programs) == names(case.programs)
    for one, two in zip(case.programs.programs, other.programs.programs, strict=True):
        assert kernels(one) == kernels(two)
        assert [sorted(c.operands) for c in one.calls] == [sorted(c.operands) for c in two.calls]


def test_no_kernel_depends_on_slots_and_groups(tmp_path: Path) -> None:
    few, many = lowered(tmp_path, "slots: 1\n"), lowered(tmp_path, "slots: 16\ngroups: 8\n")
    for one, two in zip(few.programs.programs, many.programs.programs, strict=True):
        assert [(c.spec.name, c.params, c.args) for c in one.calls] == [
            (c.spec.name, c.params, c.args) for c in two.calls
        ]


def test_number_of_stages_sets_the_number_of_programs(tmp_path: Path) -> None:
    one, three = (
        run_passes(tmp_path, f"stages: {n}\nprompt: {{sizes: [8]}}\n", layers=3) for n in (1, 3)
    )
    assert len(one.programs.programs) == 8 + 1 + 1
    assert len(three.programs.programs) == 3 * len(one.programs.programs)


def test_every_program_takes_its_table_first_and_once(case: Passes) -> None:
    for program in case.programs.programs:
        assert kernels(program).index("take_table") == 0
        assert kernels(program).count("take_table") == 1
        assert f"{program.stage}/table" in written(program)


def test_exec_runs_every_operator_of_its_stage_once(case: Passes) -> None:
    for stage in case.staged.stages:
        tensors = {w.name for n in case.staged.nodes(stage) for w in weights_of(n.op)}
        for rows in range(1, ROW_LIMIT + 1):
            program = case.program(f"{stage.index}.exec.r{rows}")
            assert weights(program) == tensors
            counts = Counter(kernels(program))
            layers = stage.last - stage.first + 1
            for kernel in ("rope_store", "attention", "attention_merge", "linears", "gated"):
                assert counts[kernel] == layers
            assert counts["linear"] == 2 * layers + stage.ends and counts["swiglu"] == 0
            assert counts["rmsnorm"] == 2 * layers + stage.ends
            assert (counts["embed"], counts["handoff_read"]) == (stage.embeds, not stage.embeds)
            assert all(counts[k] == stage.ends for k in (*HEAD_KERNELS, "store_tokens"))
            assert counts["handoff_write"] == (not stage.ends)
            assert counts["prompt_attention"] == counts["copy_cells"] == 0


def cells_of(case: Passes, stage: int) -> set[str]:
    """Full names of the cells that a stage must hold."""
    span = case.staged.stages[stage]
    layers = range(span.first, span.last + 1)
    tokens = {f"{stage}/cells.tokens"} if span.ends else set()
    return {f"{stage}/cells.{sort}.{layer}" for layer in layers for sort in "kv"} | tokens


@pytest.mark.parametrize("stage", range(STAGES))
def test_exec_prompt_and_copy_write_all_cells(case: Passes, stage: int) -> None:
    for program in case.programs.programs:
        if program.stage == stage:
            found = {name for name in written(program) if name.startswith(f"{stage}/cells.")}
            assert found == cells_of(case, stage), program.name


def test_buffers_that_leave_a_stage(case: Passes) -> None:
    own = {"table", "counter"}
    ends = {"exec": {"verdict"}, "prompt": set(), "copy": set()}
    for program in case.programs.programs:
        kind, stage = program.kind.name.lower(), program.stage
        rest = written(program) - cells_of(case, stage) - {f"{stage}/{name}" for name in own}
        expected = ends[kind] if stage else (set() if kind == "copy" else {"handoff"})
        assert rest == {f"{stage}/{name}" for name in expected}, program.name


def test_handoff_is_one_buffer_of_the_stage_that_writes_it(case: Passes) -> None:
    writer = case.program("0.exec.r4").calls[-1].operands["handoff"]
    reader = case.program("1.exec.r4").calls[1].operands["handoff"]
    assert writer == reader == Named(0, "handoff", "contexts", case.facts.handoff_rows)
    rows = case.facts.groups * ROW_LIMIT + 2 * SIZES[-1]
    assert case.facts.handoff_rows == rows


@pytest.mark.parametrize("rows", SIZES)
def test_prompt_has_no_head_and_no_end_of_the_last_layer(case: Passes, rows: int) -> None:
    program = case.program(f"1.prompt.r{rows}")
    assert not HEAD_KERNELS & set(kernels(program))
    last = LAYERS - 1
    gone = {f"blk.{last}.{p}.weight" for p in ("attn_output", "ffn_norm", "ffn_gate", "ffn_up")}
    gone |= {f"blk.{last}.ffn_down.weight", "output_norm.weight", "output.weight"}
    full = case.program("1.exec.r8")
    assert weights(program) == weights(full) - gone
    assert kernels(program)[-2:] == ["rope_store", "store_tokens"]
    assert kernels(program).count("prompt_attention") == 0  # the stage's only layer is the last


@pytest.mark.parametrize("rows", SIZES)
def test_prompt_of_an_earlier_stage_is_whole(case: Passes, rows: int) -> None:
    program = case.program(f"0.prompt.r{rows}")
    assert weights(program) == weights(case.program("0.exec.r8"))
    assert Counter(kernels(program))["prompt_attention"] == 2  # layers 0 and 1
    assert kernels(program)[-1] == "handoff_write"


def arguments(program: LoweredProgram) -> list[tuple[LoweredCall, Any, Operand]]:
    return [(c, a, c.operands[a.name]) for c in program.calls for a in c.args]


def test_every_argument_is_bound_to_a_buffer_that_fits(case: Passes) -> None:
    for program in case.programs.programs:
        scratch: dict[str, tuple[object, ...]] = {}
        for one, arg, operand in arguments(program):
            assert KERNELS[one.spec.name] is one.spec
            assert isinstance(one.params, one.spec.params)
            assert one.operands.keys() == {a.name for a in one.args}
            if isinstance(operand, Scratch):
                assert arg.shape[0] > 0
                assert scratch.setdefault(operand.name, (arg.dtype, arg.shape)) == (
                    arg.dtype,
                    arg.shape,
                )
            else:
                assert (operand.count > 0) == (arg.shape[0] == -1), operand
                assert operand.tensor is None or operand.tensor.shape == arg.shape
                assert operand.stage == program.stage or operand.name == "handoff"


def assert_same_but_rows(programs: list[LoweredProgram]) -> None:
    """The same calls with the same operands; params differ in `rows` alone."""
    first = programs[-1]
    for program in programs:
        for one, two in zip(program.calls, first.calls, strict=True):
            assert (one.spec, one.operands) == (two.spec, two.operands)
            assert one.params.rows == program.rows
            assert dataclasses.replace(one.params, rows=first.rows) == two.params


@pytest.mark.parametrize("stage", range(STAGES))
def test_arguments_differ_between_rows_through_params_only(case: Passes, stage: int) -> None:
    for kind, sizes in ((Kind.EXEC, range(1, ROW_LIMIT + 1)), (Kind.PROMPT, SIZES)):
        name = kind.name.lower()
        assert_same_but_rows([case.program(f"{stage}.{name}.r{n}") for n in sizes])


@pytest.mark.parametrize("stage", range(STAGES))
def test_windows_of_1_to_8_rows_compute_the_same_shapes(case: Passes, stage: int) -> None:
    """Row invariance: only the table's own length may differ."""
    shapes = [
        [(a.dtype, a.shape) for _, a, _ in arguments(case.program(f"{stage}.exec.r{n}"))
         if a.name != "table"]
        for n in range(1, ROW_LIMIT + 1)
    ]  # fmt: skip
    assert all(s == shapes[0] for s in shapes)


TABLE = Named(0, "table", "tables")
EMBEDDING = Named(0, "token_embd.weight", "weights")


def program_of(*calls: LoweredCall) -> Programs:
    return Programs((LoweredProgram(0, Kind.EXEC, 1, calls),))


def test_verify_finds_an_argument_without_operand() -> None:
    short = call(embed.SPEC, embed.Params(1, 10, 4, "F32"), table=TABLE, weight=EMBEDDING)
    with pytest.raises(AssertionError, match=r"0\.exec\.r1: embed"):
        program_of(short).verify()


def test_verify_finds_a_value_that_is_read_before_it_is_written() -> None:
    x, y = Scratch("x"), Scratch("y")
    weight = Named(0, "norm", "weights")
    params = embed.Params(1, 10, 4, "F32")
    first = call(embed.SPEC, params, table=TABLE, weight=EMBEDDING, out=x)
    second = call(rmsnorm.SPEC, rmsnorm.Params(1, 4, 1e-5), x=x, weight=weight, out=y)
    program_of(first, second).verify()
    with pytest.raises(AssertionError, match="x is not written"):
        program_of(second, first).verify()


def test_describe_has_a_line_for_each_call(case: Passes) -> None:
    blocks = case.programs.describe().split("\n\n")
    assert len(blocks) == len(case.programs.programs)
    for block, program in zip(blocks, case.programs.programs, strict=True):
        name, *lines = block.splitlines()
        assert name == program.name
        assert [line.split()[0] for line in lines] == kernels(program)
