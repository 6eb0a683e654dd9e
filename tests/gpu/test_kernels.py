"""Every kernel against its reference: on a GPU with `--gpu`, and a few of them emulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from emulation import needs_compiler
from entry_units import on, prepare
from gpu_kernels import GPU, GpuKernels, kernels_on
from kernel_examples import IDS, sizes
from kernel_sweep import EXAMPLES, WITH_MATRICES, check, entry_of, of_type
from strata_kernels.quants import GPU_TYPES
from strata_kernels.registry import KERNELS
from strata_kernels.render import Entry

#: Rows of windows and of a prompt, and the most tables; `tests/emulation` has more of them.
ROWS = {"gpu": (*range(1, 9), 32), "emulated": (3,)}
TYPED_ROWS = {"gpu": (1, 3, 8, 32), "emulated": (2,)}
MOST = {"gpu": None, "emulated": 3}
#: Matrices of every type in each kernel that reads some.
TYPES = [(name, kind) for name in sorted(WITH_MATRICES) for kind in GPU_TYPES]

emulated = pytest.param("emulated", marks=needs_compiler)


@pytest.fixture(scope="module", params=[emulated, GPU])
def place(request: pytest.FixtureRequest) -> str:
    """Where kernels run."""
    found: str = request.param
    return found


@pytest.fixture(scope="module", autouse=True)
def kernels(
    place: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GpuKernels]:
    """Everything is compiled first, side by side; one torch thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    cache = request.config.cache.mkdir("cubins")
    units = [entries(name, params, ROWS[place]) for name, params in EXAMPLES]
    units += [entries(name, of_type(name, kind), TYPED_ROWS[place]) for name, kind in TYPES]
    with kernels_on(place, cache, tmp_path_factory.mktemp("cubins")) as found, on(found):
        for unit in units:
            prepare(unit)
        found.compile(list(dict.fromkeys(entry for unit in units for entry in unit)))
        yield found
    torch.set_num_threads(before)


def entries(name: str, params: Any, rows: tuple[int, ...]) -> list[Entry]:
    """The kernel for programs of these sizes, as far as it is for them."""
    return [entry_of(name, params, n) for n in sizes(name, rows)]


@pytest.mark.parametrize(("name", "params"), EXAMPLES, ids=IDS)
def test_every_kernel_is_its_reference(place: str, name: str, params: Any) -> None:
    """All rows, lengths and tables: the declared outputs, and nothing else, whatever was there."""
    for entry in entries(name, params, ROWS[place]):
        assert check(entry, MOST[place]) > 0, f"{entry.name}: nothing but zeros"


@pytest.mark.parametrize(("name", "kind"), TYPES)
def test_every_type_of_matrix(place: str, name: str, kind: str) -> None:
    for entry in entries(name, of_type(name, kind), TYPED_ROWS[place]):
        assert check(entry, MOST[place]) > 0, f"{entry.name}: nothing but zeros"


def test_no_kernel_is_left_out() -> None:
    assert {name for name, _ in EXAMPLES} == set(KERNELS)
