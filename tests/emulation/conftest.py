"""One torch thread, and the comparisons of whole templates on a GPU too, with `--gpu`.

Comparisons are many and small, and tests side by side do not wait for each other's threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from entry_units import on
from gpu_kernels import GPU, GpuKernels, kernels_on

#: Modules whose tests compare the project's templates with their references.
TEMPLATES = (
    *("test_attention_templates", "test_copies", "test_draft_templates"),
    *("test_products", "test_sampling_templates"),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For the test; as it was before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Templates run twice, where a GPU was asked for."""
    templates = metafunc.module.__name__.rpartition(".")[2] in TEMPLATES
    if templates and metafunc.config.getoption("--gpu"):
        metafunc.parametrize("place", ["emulated", GPU], indirect=True)


@pytest.fixture(scope="session")
def gpu_kernels(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GpuKernels]:
    """The card's; cubins are kept from one run of the tests to the next."""
    cache = request.config.cache.mkdir("cubins")
    with kernels_on("gpu", cache, tmp_path_factory.mktemp("cubins")) as kernels:
        yield kernels


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where this test's entries run."""
    gpu = getattr(request, "param", "emulated") == "gpu"
    with on(request.getfixturevalue("gpu_kernels")) if gpu else nullcontext():
        yield
