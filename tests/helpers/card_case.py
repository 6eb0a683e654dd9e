"""CUDA devices on a real card, with `--gpu`, and on a fake one; and single programs on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fake_card import FakeCard, without_nvrtc
from gpu_bundle import architecture
from identity import Cards
from replayer import Replayer, compile_bundle
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.launch import Launch, Row, Segment, Table
from token_by_token import fill_free


def opened(bundle: Bundle) -> CudaDevice:
    """A bundle on the first card of this machine."""
    folder = bundle.folder
    return CudaDevice(bundle, open_weights(bundle, folder), open_draft(bundle, folder))


def opened_on_fake(bundle: Bundle) -> CudaDevice:
    """A bundle on a fake card of its own."""
    with pytest.MonkeyPatch.context() as patch:
        return FakeCard(bundle, seed=3).open(patch)


def compiled_for_fake(folder: Path, model: Path, **keys: object) -> Bundle:
    """As compile_bundle; kernels have no code."""
    with pytest.MonkeyPatch.context() as patch:
        without_nvrtc(patch)
        return compile_bundle(folder, model, **keys)


def cards_of(place: str) -> Cards:
    """Cards: a real "gpu", or "fake"."""
    if place == "gpu":
        return Cards(architecture(), compile_bundle, opened)
    return Cards("sm_90", compiled_for_fake, opened_on_fake)


class CardReplayer(Replayer):
    """Runs single programs through a CUDA device, one after another, and shows what they left."""

    def __init__(self, bundle: Bundle, device: CudaDevice) -> None:
        """NaN in everything that is neither a weight nor a table."""
        self.bundle, self.device = bundle, device
        self.stages = len(bundle.manifest.stages)
        self.arenas = device.arenas
        self._sequence = 0
        call = device.driver
        self._context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0))
        self.poison(0xFF)

    def poison(self, byte: int) -> None:
        """Fill cells, contexts, scratch and answers with a byte; nothing is in flight."""
        self._enter()
        fill_free(self.arenas, self.bundle.manifest, byte, "cuda")

    def close(self) -> None:
        """Close the device."""
        self.device.close()
        self._enter()

    def _enter(self) -> None:
        """Make torch's own context the thread's: a stage may have another one."""
        self.device.driver("cuCtxSetCurrent", self._context)

    def run(self, program: str, rows: Sequence[Row], context: int = 0) -> None:
        """Replay a program on every stage; rows that stand together are a segment."""
        kind = program.split(".")[0]
        firsts = [i for i, r in enumerate(rows) if r.index == 0]
        counts = np.diff([*firsts, len(rows)]).tolist()
        segments = [Segment(rows[f].slot, 1, f, c) for f, c in zip(firsts, counts, strict=True)]
        table, before = Table(kind, context, tuple(rows), tuple(segments[:8])), self._sequence
        for stage in range(self.stages):
            self._sequence += 1
            waits = (self._sequence - 1,) if stage else ()
            self.device.submit(Launch(self._sequence, stage, program, table, waits))
        done = [self.device.wait() for _ in range(self.stages)]
        assert {d.launch_id for d in done} == {*range(before + 1, self._sequence + 1)}
        self._enter()
