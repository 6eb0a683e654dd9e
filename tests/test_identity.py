"""Every text is bit for bit what it is alone, whatever is drafted and whoever runs beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from identity import Book, Rig, Rigs
from identity_cases import PAIRS, Case, every_case, serve
from recurrent import install
from strata_runtime.device import Device
from token_by_token import fill_free


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """All rigs, made when they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        made = Rigs(tmp_path_factory.mktemp("rigs"))
        yield made
        made.close()


def device_of(case: Case, rig: Rig, book: Book) -> Device:
    """The case's device, its memory poisoned; the ordered one is watched."""
    device = rig.ordered if case.ordered else rig.threads
    fill_free(device.arenas, rig.bundle.manifest, case.poison)
    if case.ordered:
        rig.ordered.begin(case.stages + case.slots, book.witness(rig))
    return device


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_every_text_is_what_it_is_alone(case: Case, rigs: Rigs) -> None:
    """Tokens and logits hashes; on the ordered device cells and states after every launch."""
    serve(case, rigs, lambda rig, book: device_of(case, rig, book))


@pytest.mark.soak
@pytest.mark.parametrize("case", list(every_case()), ids=str)
def test_every_rig(case: Case, rigs: Rigs) -> None:
    """The whole product of RIG."""
    serve(case, rigs, lambda rig, book: device_of(case, rig, book))
