"""Streams on the CUDA device: every text is what it is alone, and serving makes nothing."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from card_case import cards_of
from crowd import Crowd
from gpu_kernels import GPU
from identity import Rig, Rigs, decode, narrowed
from identity_cases import PAIRS, Case, serve
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.engine import Engine
from strata_runtime.schedule import Schedule
from token_by_token import POISON, fill_free

#: The family that has templates. A CUDA device has an order of its own.
LLAMAS = [replace(case, ordered=False) for case in PAIRS if case.family == "llama"]
SMALL = [case for case in LLAMAS if case.slots == 1]
#: All of them on a GPU, three small ones on the fake card.
CASES = [
    *(pytest.param("fake", case, id=f"fake-{case}") for case in SMALL[::3]),
    *(pytest.param("gpu", case, marks=pytest.mark.gpu, id=f"gpu-{case}") for case in LLAMAS),
]
SOAK = 10_000  #: windows
#: Bytes of the card's memory that may go meanwhile, and seconds after which a run has stalled.
SLACK, STALLED = 1 << 20, 900

everywhere = pytest.mark.parametrize("rigs", ["fake", GPU], indirect=True)
every_draft = pytest.mark.parametrize("mtp", [False, True], ids=["host", "mtp"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Rigs]]:
    """All rigs of a sort of cards, made when they are asked for."""
    known: dict[str, Rigs] = {}

    def of(place: str) -> Rigs:
        if place not in known:
            known[place] = Rigs(tmp_path_factory.mktemp(place), cards_of(place))
        return known[place]

    yield of
    for rigs in known.values():
        rigs.close()


@pytest.fixture
def rigs(request: pytest.FixtureRequest, made: Callable[[str], Rigs]) -> Rigs:
    """Those of the test's cards."""
    return made(request.param)


def poisoned(rig: Rig, byte: int = POISON) -> CudaDevice:
    """The rig's device; its free memory holds nothing of use."""
    fill_free(rig.cuda.arenas, rig.bundle.manifest, byte, "cuda")
    return rig.cuda


@pytest.mark.parametrize(("rigs", "case"), CASES, indirect=["rigs"])
def test_every_text_is_what_it_is_alone(rigs: Rigs, case: Case) -> None:
    """Tokens and logits hashes, with every way of drafting, in 1, 2 and 4 stages."""
    serve(case, rigs, lambda rig, book: poisoned(rig, case.poison))


@everywhere
@every_draft
def test_twenty_repeats(rigs: Rigs, mtp: bool) -> None:
    """The same streams again and again, on memory that held something else: the same texts."""
    rig, book = rigs.rig("llama", 2, mtp), rigs.book("llama")
    wanted = book.requests[:6]
    alone = [book.texts[request.sampling.seed] for request in wanted]
    for run in range(20 if _is_real(rig.cuda) else 3):
        device, manifest = poisoned(rig, 37 * run % 256), narrowed(rig.bundle.manifest, 6, 2)
        drafter = None if mtp else book.drafter("replay random")
        engine = Engine(manifest, device, drafter=drafter, schedule=Schedule(drafts=3))
        assert decode(engine, wanted)[0] == alone, run


def _is_real(device: CudaDevice) -> bool:
    return not device.arenas.buffer("0/scratch").is_cpu


@everywhere
@every_draft
def test_serving_makes_nothing(rigs: Rigs, mtp: bool) -> None:
    """Neither in the driver nor in torch, while streams come, go and are cancelled."""
    rig = rigs.rig("llama", 4, mtp)
    device = poisoned(rig)
    before = _made(device)
    crowd = Crowd(rig, rigs.book("llama"), device, seed=2)
    crowd.run(1000 if _is_real(device) else 60)
    crowd.drain()
    assert crowd.texts > 5 and crowd.device.drafted > 0
    assert _made(device) == before


def _made(device: CudaDevice) -> tuple[dict[str, int], int]:
    """What the driver made, and how often torch has allocated memory of the card."""
    allocated = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
    return dict(device.driver.made), allocated


@pytest.mark.soak
@everywhere
@every_draft
def test_ten_thousand_windows(rigs: Rigs, mtp: bool) -> None:
    """Random admissions, cancels, rejections: no text changes, and no memory goes."""
    rig, book = rigs.rig("llama", 2, mtp), rigs.book("llama")
    faulthandler.dump_traceback_later(STALLED, exit=True)
    try:
        device = poisoned(rig)
        crowd = Crowd(rig, book, device, seed=1)
        windows = SOAK if _is_real(device) else SOAK // 50
        crowd.run(windows // 5)
        (free, _), made = device.driver("cuMemGetInfo"), _made(device)
        crowd.run(windows)
        crowd.drain()
        (free_then, _), made_then = device.driver("cuMemGetInfo"), _made(device)
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert abs(free_then - free) < SLACK and made_then == made
    assert crowd.texts > windows / 20 and crowd.cancelled >= windows / 200
    assert 0 < crowd.device.accepted < crowd.device.drafted
