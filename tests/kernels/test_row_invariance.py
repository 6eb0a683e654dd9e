"""A row's bits depend on the row alone: not on the program, its place, company or threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernel_case import bind, bits, make_table
from kernel_examples import ALL, IDS, NOT_OF_ROWS
from row_company import case_of, row_bytes
from strata_kernels import linear, rmsnorm, swiglu
from strata_kernels.spec import Region

WINDOWS = [(rows, place) for rows in (1, 2, 3, 5, 8) for place in range(rows)]
PROMPTS = [(32, 0), (32, 13), (128, 7), (128, 127)]
LENGTHS = (1, 63, 64, 65, 200)

#: Of the others test_verdict.py, test_drafting.py and test_copy_state.py have the company.
TESTED = [i for i, (name, _) in enumerate(ALL) if name not in NOT_OF_ROWS]
every_kernel = pytest.mark.parametrize(
    ("name", "params"), [ALL[i] for i in TESTED], ids=[IDS[i] for i in TESTED]
)


def lengths(name: str, params: Any) -> tuple[int, ...]:
    """History matters to attention and to penalties, and to nobody else."""
    looks_back = {"attention", "prompt_attention", "attention_merge", "sample"}
    return LENGTHS if name in looks_back else LENGTHS[-1:]


@every_kernel
def test_windows(name: str, params: Any) -> None:
    for length in lengths(name, params):
        wanted = row_bytes(case_of(name, params, 1, 0, length, seed=1), 0, length)
        assert wanted and all(wanted.values())
        for rows, place in WINDOWS:
            case = case_of(name, params, rows, place, length, seed=2)
            assert row_bytes(case, place, length) == wanted


@every_kernel
def test_prompts(name: str, params: Any) -> None:
    """In a chunk of a prompt as in a window of one row."""
    length = 200
    wanted = row_bytes(case_of(name, params, 1, 0, length, seed=1), 0, length)
    for rows, place in PROMPTS:
        case = case_of(name, params, rows, place, length, seed=2)
        assert row_bytes(case, place, length) == wanted


@every_kernel
def test_two_threads(name: str, params: Any, threads: Callable[[int], None]) -> None:
    """One thread or two, in windows and in prompts."""
    length = 200
    wanted = row_bytes(case_of(name, params, 1, 0, length, seed=1), 0, length)
    cases = [
        (case_of(name, params, rows, place, length, seed=2), place)
        for rows, place in [*WINDOWS[::4], *PROMPTS[1::2]]
    ]
    threads(2)
    assert [row_bytes(case, place, length) for case, place in cases] == [wanted] * len(cases)


def test_the_method_sees_a_difference() -> None:
    """Other values of the row itself, or another length, do give other bytes."""
    name, params = ALL[IDS.index("attention-0")]
    case = case_of(name, params, 5, 3, 65, seed=2)
    wanted = row_bytes(case, 3, 65)
    q = case["q"].clone()
    q[3, 5] += 1e-6
    changed = bind(case.spec, case.params, case.table, {**case.tensors, "q": q})
    assert row_bytes(changed, 3, 65) != wanted
    assert row_bytes(case_of(name, params, 5, 3, 64, seed=2), 3, 64) != wanted
    assert case.args["q"].reads is Region.WHOLE


@pytest.mark.parametrize("rows", [8, 40])
def test_every_width(rows: int) -> None:
    """Equal rows give equal rows, the last one too: vector loops end somewhere in it."""
    for width in range(17, 82):
        for spec, params in (
            (rmsnorm.SPEC, rmsnorm.Params(rows, width, 1e-5)),
            (swiglu.SPEC, swiglu.Params(rows, width)),
            (linear.SPEC, linear.Params(rows, width, 98 - width, "f32")),
        ):
            case = bind(spec, params, make_table(rows, []), seed=width)
            for name in ("x", "gate", "up"):
                if name in case.tensors:
                    case[name][1:] = case[name][0]
            assert len({bits(row) for row in case.run()["out"]}) == 1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("inner", "outer"), [(576, 1536), (1536, 576), (576, 4099), (2048, 513)])
def test_large_matrices(inner: int, outer: int, count: int, threads: Callable[[int], None]) -> None:
    """Sizes at which products are split over threads; programs of 8, 32, 128 and 512 rows."""
    base = bind(linear.SPEC, linear.Params(8, inner, outer, "f32"), make_table(8, [])).run()
    threads(count)
    for rows, place in ((8, 5), (32, 31), (128, 64), (512, 509)):
        generator = torch.Generator().manual_seed(rows)
        values = {"weight": base["weight"], "x": torch.randn(rows, inner, generator=generator)}
        values["x"][place] = base["x"][2]
        params = linear.Params(rows, inner, outer, "f32")
        case = bind(linear.SPEC, params, make_table(rows, []), values).run()
        assert bits(case["out"][place]) == bits(base["out"][2])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("width", [576, 2048, 5000])
def test_large_norms(width: int, count: int, threads: Callable[[int], None]) -> None:
    base = bind(rmsnorm.SPEC, rmsnorm.Params(8, width, 1e-5), make_table(8, [])).run()
    threads(count)
    for rows, place in ((8, 5), (128, 64), (512, 509)):
        generator = torch.Generator().manual_seed(rows)
        values = {"weight": base["weight"], "x": torch.randn(rows, width, generator=generator)}
        values["x"][place] = base["x"][2]
        params = rmsnorm.Params(rows, width, 1e-5)
        case = bind(rmsnorm.SPEC, params, make_table(rows, []), values).run()
        assert bits(case["out"][place]) == bits(base["out"][2])
