"""A bundle's own programs, emulated and (with --gpu) on a GPU, from token to verdict."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from cubin_case import needs_nvrtc
from emulated_bundle import EmulatedBundle, TemplateBundle
from emulation import ORDERS, needs_compiler
from gguf_maker import write_tiny_llama
from replayer import Replayer, compile_bundle, rows_of
from strata_runtime.bundle_load import Bundle

pytestmark = [needs_compiler, needs_nvrtc(13)]

TOKENS = [int(t) for t in np.random.default_rng(11).integers(0, 133, 80)]
GPU = pytest.param("gpu", marks=pytest.mark.gpu)
PROGRAMS = ("exec.r1", "exec.r3", "exec.r8", "prompt.r8")


@pytest.fixture(scope="module")
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two stages, f16 cells, matrices of Q4_1, for the CPU device and for a GPU."""
    folder = tmp_path_factory.mktemp("bundle")
    model = write_tiny_llama(
        folder / "tiny.gguf", embedding=64, ff=96, ftype=GGMLQuantizationType.Q4_1
    )
    keys = {"stages": 2, "slots": 3, "groups": 1, "context": 128, "kv": "f16"}
    arch = "sm_86"
    if request.config.getoption("--gpu"):
        from gpu_bundle import architecture

        arch = architecture()
    return compile_bundle(folder, model, **keys, prompt="{sizes: [8]}", targets=f"[cpu, {arch}]")


@pytest.fixture(scope="module", params=[*ORDERS, GPU])
def emulated(request: pytest.FixtureRequest, bundle: Bundle) -> TemplateBundle:
    """Threads of a block in ascending, then in descending order; then a real GPU."""
    if request.param == "gpu":
        from gpu_bundle import GpuBundle

        return GpuBundle(bundle, PROGRAMS)
    return EmulatedBundle(bundle, PROGRAMS, request.param)


def read(emulated: TemplateBundle, slot: int, tokens: list[int]) -> None:
    """Read tokens in prompt chunks of 8."""
    shape = emulated.bundle.manifest.shape
    for at in range(0, len(tokens), 8):
        rows = rows_of(slot, at, tokens[at : at + 8], handoff=shape.groups * shape.row_limit)
        emulated.run("prompt.r8", rows, shape.groups)


def test_logits_are_those_of_the_cpu_device(bundle: Bundle, emulated: TemplateBundle) -> None:
    """A prompt and a window, through both stages: the reference's logits to float32 rounding."""
    replayer = Replayer(bundle, poison=0xFF)
    replayer.prompt(1, TOKENS[:66], 8)
    read(emulated, 1, TOKENS[:66])
    rows = rows_of(1, 66, TOKENS[66:69])
    expected = replayer.window(rows).view(np.float32)
    found = emulated.window(rows).view(np.float32)
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_rows_do_not_see_their_company(emulated: TemplateBundle) -> None:
    """A row's logits are the same bits alone, in a segment, and among other slots."""
    for slot in (0, 1, 2):
        read(emulated, slot, TOKENS[slot : slot + 66])
    alone = emulated.window(rows_of(0, 66, TOKENS[66:67]))[0]
    others = [rows_of(1 + i % 2, 20 + i, TOKENS[i : i + 1], i) for i in range(7)]
    for place in (0, 2, 7):
        rows = [row for part in others[:place] for row in part]
        rows += rows_of(0, 66, TOKENS[66 : 66 + 8 - place], place)
        assert (emulated.window(rows)[place] == alone).all(), place
    assert (emulated.window(rows_of(0, 64, TOKENS[64:67]))[2] == alone).all()


def test_prompts_and_windows_leave_the_same_cells(emulated: TemplateBundle) -> None:
    """Promise 2 for the templates: every sort of cells, byte for byte."""
    read(emulated, 0, TOKENS[:72])
    for at in range(0, 72, 3):
        emulated.window(rows_of(2, at, TOKENS[at : at + 3]))
    assert emulated.cells(0, 72) == emulated.cells(2, 72)
