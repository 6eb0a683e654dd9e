"""A tiny bundle for a fake card, and what the CUDA device's tests give it to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_card import without_nvrtc
from gguf_maker import write_tiny_llama, write_tiny_nextn
from identity import decode
from replayer import compile_bundle
from strata_runtime.bundle_format import Manifest
from strata_runtime.bundle_load import Bundle
from strata_runtime.device import Device
from strata_runtime.engine import Engine
from strata_runtime.launch import Launch, Row, Sampling, Segment, Table
from strata_runtime.request import Request
from token_by_token import Text

CONTEXT, VOCAB = 96, 133
KEYS = {"stages": 2, "slots": 4, "groups": 2, "context": CONTEXT, "prompt": "{sizes: [8, 32]}"}


class Bundles:
    """Compiles for the CPU and for GPUs, without NVRTC; by the plan's keys, once each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Bundle] = {}

    def __call__(self, **keys: object) -> Bundle:
        name = str(sorted(keys.items()))
        if name not in self._made:
            folder = self._folder / str(len(self._made))
            folder.mkdir()
            model = write_tiny_llama(folder / "tiny.gguf", vocab=VOCAB)
            write_tiny_nextn(folder / "layer.gguf", vocab=VOCAB)
            plan = {**KEYS, "targets": "[cpu, sm_90]", **keys}
            with pytest.MonkeyPatch.context() as patch:
                without_nvrtc(patch)
                self._made[name] = compile_bundle(folder, model, **plan)
        return self._made[name]


def requests() -> list[Request]:
    """Greedy and sampled, prompts of one row and of several chunks, some that repeat themselves."""
    plain, drawn = Sampling(), Sampling(temperature=0.9, top_k=30, seed=7)
    penal = Sampling(repeat_penalty=1.3, penalty_last=16)
    prompts = ([5], [1, 2, 3, 4] * 5, range(50), [9, 8] * 3, range(40, 73), [7] * 12, [3, 4])
    kinds = (plain, plain, drawn, plain, penal, drawn, plain)
    return [
        Request(0, (*prompt,), 12 + i, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts, kinds, strict=True))
    ]


def texts_on(device: Device, manifest: Manifest) -> list[Text]:
    """All requests at once, more than there are slots."""
    return decode(Engine(manifest, device), requests(), stagger=2)[0]


def table(kind: str, slot: int, position: int, token: int, context: int = 0) -> Table:
    """One row."""
    row = Row(slot, position, token, 0, 0, context * 8, slot, slot)
    return Table(kind, context, (row,), (Segment(slot, 1, 0, 1),))


def submit(device: Device, first: int, program: str, what: Table) -> None:
    """Launches `first` and `first` + 1: one a stage, the second waits for the first."""
    device.submit(Launch(first, 0, program, what))
    device.submit(Launch(first + 1, 1, program, what, (first,)))
