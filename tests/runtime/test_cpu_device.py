"""The CPU device: rings, waits, completions, and bundles that it cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_maker
from replayer import compile_bundle
from strata_runtime.arenas import Arenas
from strata_runtime.bundle_format import Argument, Call, Program
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.cpu_device import CpuDevice, bind
from strata_runtime.device import Device, Done
from strata_runtime.errors import BundleError, DeviceError
from strata_runtime.launch import Launch, Row, Segment, Table

CONTEXT = 512
TOKENS = "1/cells.tokens"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("device")
    model = gguf_maker.write_tiny_llama(folder / "tiny.gguf", vocab=CONTEXT)
    keys = {"stages": 2, "slots": 3, "groups": 2, "context": CONTEXT, "prompt": "{sizes: [16]}"}
    return compile_bundle(folder, model, **keys)


@pytest.fixture
def device(bundle: Bundle) -> Iterator[CpuDevice]:
    found = CpuDevice(bundle, open_weights(bundle, bundle.folder), threads=1)
    yield found
    found.close()


def table(kind: str, slot: int, position: int, token: int, context: int = 0) -> Table:
    """One row."""
    row = Row(slot, position, token, 0, 0, context * 8, slot, slot)
    return Table(kind, context, (row,), (Segment(slot, 1, 0, 1),))


def submit(device: Device, first: int, program: str, what: Table) -> None:
    """Launches `first` and `first` + 1: one a stage, the second waits for the first."""
    device.submit(Launch(first, 0, program, what))
    device.submit(Launch(first + 1, 1, program, what, (first,)))


def cell_tokens(device: CpuDevice, slot: int) -> list[int]:
    """What the token cells of a slot hold."""
    found: list[int] = device.arenas.buffer(TOKENS)[slot].flatten().tolist()
    return found


def test_ring_entries_are_used_again(bundle: Bundle, device: CpuDevice) -> None:
    """Far more launches than entries, none of them waited for: each has run with its own table."""
    assert 3 * bundle.manifest.shape.ring_entries < CONTEXT
    for position in range(CONTEXT):
        submit(
            device, 2 * position + 1, "exec.r1", table("exec", 1, position, CONTEXT - position - 1)
        )
    done = [device.wait() for _ in range(2 * CONTEXT)]
    assert [d.error for d in done if d.error is not None] == []
    assert cell_tokens(device, 1) == [*range(CONTEXT - 1, -1, -1)]
    assert not any(cell_tokens(device, 0) + cell_tokens(device, 2))
    assert [int(device.arenas.buffer(f"{s}/counter")[0]) for s in (0, 1)] == [CONTEXT] * 2


def test_completions(device: CpuDevice) -> None:
    """Each launch once, stage by stage in order, and never before what it waits for."""
    for i in range(40):
        program = "prompt.r16" if i % 3 else "exec.r2"
        submit(device, 2 * i + 1, program, table(program.split(".")[0], i % 3, i, i))
    done = [device.wait() for _ in range(80)]
    order = [d.launch_id for d in done]
    assert sorted(order) == [*range(1, 81)]
    for stage in (0, 1):
        mine = [d.launch_id for d in done if d.stage == stage]
        assert mine == [*range(1 + stage, 81, 2)]
    assert all(order.index(2 * i + 1) < order.index(2 * i + 2) for i in range(40))
    assert all(d.elapsed_ms > 0 for d in done)


def test_the_next_stage_reads_what_was_handed_to_it(device: CpuDevice) -> None:
    """The same row in any of the contexts, after others in the same one: the same verdict."""
    found = []
    for i, (context, token) in enumerate([(0, 5), (1, 5), (0, 9), (0, 5), (1, 9), (1, 5)]):
        submit(device, 2 * i + 1, "exec.r1", table("exec", 2, 0, token, context))
        assert [device.wait().error for _ in range(2)] == [None, None]
        found.append((token, device.verdict(context)[0].tolist()))
    words = dict(found)
    assert found == [(token, words[token]) for token, _ in found]
    assert words[5][2:] != words[9][2:]


def test_a_verdict_is_a_copy(bundle: Bundle, device: CpuDevice) -> None:
    submit(device, 1, "exec.r1", table("exec", 0, 0, 3, context=1))
    assert [device.wait().error for _ in range(2)] == [None, None]
    first = device.verdict(1)
    assert first.shape == (bundle.manifest.shape.row_limit, 4) and first.dtype == np.int32
    expected = first.copy()
    first[:] = -9
    assert device.verdict(1).tobytes() == expected.tobytes()
    assert 0 <= expected[0, 1] < CONTEXT and not device.verdict(0).any()


def test_a_launch_that_fails_is_reported_and_the_next_runs(device: CpuDevice) -> None:
    """Its row lies outside of every slot."""
    submit(device, 1, "exec.r1", table("exec", 7, 0, 3))
    submit(device, 3, "exec.r1", table("exec", 0, 0, 3))
    done: dict[int, Done] = {d.launch_id: d for d in (device.wait() for _ in range(4))}
    assert isinstance(done[1].error, IndexError) and isinstance(done[2].error, IndexError)
    assert done[3].error is None and done[4].error is None
    assert cell_tokens(device, 0)[0] == 3


def test_threads_share_the_cores(bundle: Bundle) -> None:
    """Results do not depend on how many there are."""
    words = []
    for threads in (1, 2, None):
        device = CpuDevice(bundle, open_weights(bundle, bundle.folder), threads)
        submit(device, 1, "exec.r8", table("exec", 1, 0, 77))
        assert [device.wait().error for _ in range(2)] == [None, None]
        words.append(device.verdict(0).tobytes())
        device.close()
    assert words[0] == words[1] == words[2]


def test_a_bundle_without_the_cpu(bundle: Bundle) -> None:
    manifest = replace(bundle.manifest, targets=("sm_86", "sm_90"), memory={})
    other = replace(bundle, manifest=manifest)
    message = f"^{bundle.folder}: compiled for sm_86, sm_90, not for cpu; add the target$"
    with pytest.raises(DeviceError, match=message):
        CpuDevice(other, open_weights(bundle, bundle.folder))


def spoiled(bundle: Bundle, changes: Mapping[str, Any]) -> Program:
    """A program whose second call is changed."""
    program = bundle.programs[1, "exec.r1"]
    calls = list(program.calls)
    calls[1] = replace(calls[1], **changes)
    return replace(program, calls=tuple(calls))


def call_of(bundle: Bundle) -> Call:
    """The call that is changed: hand-off rows to scratch."""
    call = bundle.programs[1, "exec.r1"].calls[1]
    assert call.kernel == "handoff_read"
    return call


def bind_error(bundle: Bundle, **changes: object) -> str:
    """The message with which binding fails; it names the program and the call."""
    with pytest.raises(BundleError, match=r"^1\.exec\.r1, call 1: .*; compile again$") as caught:
        bind(spoiled(bundle, changes), Arenas(bundle.manifest.memory["cpu"]))
    return str(caught.value)


def test_an_unknown_kernel(bundle: Bundle) -> None:
    assert "unknown kernel 'handoff_reed'" in bind_error(bundle, kernel="handoff_reed")


@pytest.mark.parametrize(
    "params", [{}, {"rows": 1}, {"rows": 1, "width": 48, "depth": 2}], ids=["none", "less", "more"]
)
def test_unknown_params(bundle: Bundle, params: dict[str, int]) -> None:
    assert "handoff_read: " in bind_error(bundle, params=params)


def test_params_of_a_wrong_type(bundle: Bundle) -> None:
    """JSON holds anything; a kernel's params are numbers, names and switches."""
    assert "width" in bind_error(bundle, params={"rows": 1, "width": "48"})


def argument(bundle: Bundle, **changes: Any) -> dict[str, Argument]:
    """The call's arguments, the hand-off changed."""
    args = dict(call_of(bundle).args)
    return {**args, "handoff": replace(args["handoff"], **changes)}


def test_a_buffer_that_is_not_there(bundle: Bundle) -> None:
    assert "0/nothing" in bind_error(bundle, args=argument(bundle, buffer="0/nothing"))


@pytest.mark.parametrize(
    "changes", [{"offset": 1 << 30}, {"offset": 4}, {"offset": -4}, {"shape": (1 << 20, 48)}]
)
def test_an_argument_past_its_buffer(bundle: Bundle, changes: dict[str, Any]) -> None:
    assert "handoff" in bind_error(bundle, args=argument(bundle, **changes))


def test_a_type_that_is_not_there(bundle: Bundle) -> None:
    assert "q7" in bind_error(bundle, args=argument(bundle, dtype="q7"))


@pytest.mark.parametrize("change", ["less", "more"])
def test_arguments_that_are_not_the_kernels(bundle: Bundle, change: str) -> None:
    args = dict(call_of(bundle).args)
    if change == "less":
        del args["handoff"]
    else:
        args["hand"] = args["handoff"]
    assert "hand" in bind_error(bundle, args=args)


def test_every_program_binds(bundle: Bundle, tmp_path: Path) -> None:
    arenas = Arenas(bundle.manifest.memory["cpu"])
    for program in bundle.programs.values():
        bound = bind(program, arenas)
        assert len(bound) == len(program.calls)
        for (_, params, tensors), call in zip(bound, program.calls, strict=True):
            assert tensors.keys() == call.args.keys() and params is not None
