"""Cases of rigs and of how they are served, in which every text must be what it is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from identity import HOLDS, Book, Rig, Rigs, Watched, covering, decode, narrowed
from strata_runtime.device import Device
from strata_runtime.engine import Engine
from strata_runtime.schedule import Schedule

#: What a rig may be; "ordered" is the device that checks cells and states after each launch.
RIG = {
    "family": ("llama", "recurrent"),
    "stages": (1, 2, 4),
    "windows": (1, 2, 4),
    "slots": (1, 2, 4),  # of a window
    "drafter": ("none", "ngram", "mtp", *HOLDS),
    "stagger": (0, 3),
    "poison": (0x00, 0xFF),  # 0xFF: NaN
}
#: How it is served; all of it in `make test`, one after the other in the whole product.
SERVED = {
    "drafts": (None, 1, 3, 7),  # None: chosen
    "early_commits": (True, False),
    "ordered": (True, False),
}


@dataclass(frozen=True)
class Case:
    """A rig and how it is served, as RIG and SERVED have them."""

    family: str
    stages: int
    windows: int
    slots: int
    drafter: str
    stagger: int
    poison: int
    drafts: int | None
    early_commits: bool
    ordered: bool

    def __str__(self) -> str:
        """The test's name."""
        return "-".join(str(value) for value in vars(self).values())


def every_case() -> Iterator[Case]:
    """The whole product of RIG."""
    served = list(product(*SERVED.values()))
    for i, rig in enumerate(product(*RIG.values())):
        yield Case(*rig, *served[i % len(served)])


#: All pairs of values of RIG and SERVED.
PAIRS = [Case(**case) for case in covering(RIG | SERVED)]  # type: ignore[arg-type]


def serve(case: Case, rigs: Rigs, device_of: Callable[[Rig, Book], Device]) -> None:
    """Decode as many streams as there are slots and a few more; nobody's text may change."""
    rig = rigs.rig(case.family, case.stages, case.drafter == "mtp")
    book, slots = rigs.book(case.family), case.windows * case.slots
    wanted = book.requests[: slots + 3]
    device = Watched(device_of(rig, book))
    engine = _engine(case, rig, book, device)
    texts, heard = decode(engine, wanted, case.stagger)
    assert texts == [book.texts[request.sampling.seed] for request in wanted]
    _check_seen(case, device, heard.ended_beside)


def _engine(case: Case, rig: Rig, book: Book, device: Device) -> Engine:
    auto, slots = case.drafts is None, case.windows * case.slots
    manifest = narrowed(rig.bundle.manifest, slots, case.windows, auto)
    schedule = Schedule(case.windows, case.slots, case.drafts, case.early_commits)
    drafter = None if case.drafter == "mtp" else book.drafter(case.drafter)
    return Engine(manifest, device, drafter=drafter, schedule=schedule)


def _check_seen(case: Case, device: Watched, ended_beside: int) -> None:
    """The case was what it says: otherwise it would show nothing."""
    assert device.most <= case.windows and device.widest <= case.slots
    assert (device.most, device.widest) == (case.windows, case.slots) or case.stagger
    assert ended_beside > 0
    assert ("draft" in device.kinds) == (case.drafter == "mtp")
    assert ("commit" in device.kinds) == (case.family == "recurrent")
    drafted, accepted = device.drafted, device.accepted
    if case.drafter == "none":
        assert drafted == 0
    elif case.drafts is not None and case.slots < 4:
        assert drafted > 0
        assert (accepted > 0) == (case.drafter != "replay none") or case.drafter in ("mtp", "ngram")
        assert (accepted == drafted) == (case.drafter == "replay all")
