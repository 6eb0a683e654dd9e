"""The scheduler's state: frozen, hashable, copyable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from strata_runtime.bundle_format import Shape
from strata_runtime.evolve import evolve
from strata_runtime.launch import Table, Tokens
from strata_runtime.measures import UNMEASURED, UNSEEN, Costs, Odds
from strata_runtime.request import Request
from strata_runtime.schedule import CHOSEN, Schedule

T = TypeVar("T")


class Phase(Enum):
    """What a slot is doing."""

    FREE = "free"
    PROMPT = "prompt"  # tokens of its prompt are not queued yet
    READY = "ready"  # its real token can go into a window
    WINDOW = "window"  # a window with it is in flight
    DRAFTING = "drafting"  # its verdict is there, its drafts are not
    DRAINING = "draining"  # its text has ended, what it queued has not


@dataclass(frozen=True)
class Slot:
    """One conversation; `length` cells are committed or queued, and `token` comes next, which
    `drafts` may follow.

    `in_flight` counts its windows and chunks; `served` is when one last took it. `offers` and
    `holds`: how often drafts were there, and held.
    """

    epoch: int = 0
    phase: Phase = Phase.FREE
    request: Request | None = None
    length: int = 0
    token: int = -1
    generated: int = 0
    in_flight: int = 0
    served: int = 0
    drafts: Tokens = ()
    drafting: bool = True
    offers: Odds = UNSEEN
    holds: Odds = UNSEEN


@dataclass(frozen=True)
class Context:
    """A window context: what is in flight in it, and the launch with which it leaves the stages.

    `chain` is the launch of a draft program behind its window, or 0.
    """

    table: Table | None = None
    last_launch: int = 0
    chain: int = 0

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots of what is in flight."""
        return tuple(s.slot for s in self.table.segments) if self.table else ()


@dataclass(frozen=True)
class Config:
    """What a bundle allows, and what is asked of it.

    `commits` says of each stage whether it has state, and so commit programs; none does where it
    is empty. For tests and benchmarks: `chunk_rows` bounds a prompt chunk's live rows, and of one
    window after the other, at most as many drafts are accepted as `forced` says (-1: all).
    """

    stages: int
    shape: Shape
    chunk_rows: int | None = None
    schedule: Schedule = CHOSEN
    commits: tuple[bool, ...] = ()
    forced: tuple[int, ...] = ()

    @property
    def drafts(self) -> int | None:
        """Drafts behind each real token, as the schedule or the plan has them; None: chosen."""
        asked, shape = self.schedule.drafts, self.shape
        if asked is not None:
            return min(asked, shape.draft_depth)
        return None if shape.draft_auto else shape.draft_depth

    @property
    def most_drafts(self) -> int:
        """Drafts that a slot may have."""
        return self.shape.draft_depth if self.drafts is None else self.drafts


#: Windows that probes may cost before any time has passed: at first nothing is known.
FIRST_SPARE = 8.0


@dataclass(frozen=True)
class Choice:
    """What was chosen: windows in flight, drafts of a slot at most, and `extra` rows of a window.

    This predicts `rate` tokens a second. A `probe` is there to see drafts that looked worse; what
    such may still cost is to `spare`, in windows. The choice was `made` after so many windows, for
    the `lasts` that follow, for slots and epochs `live`, with `known` times.
    """

    windows: int = 1
    drafts: int = 0
    extra: int = 0
    rate: float = 0.0
    probe: bool = False
    spare: float = FIRST_SPARE
    lasts: int = 0
    live: tuple[tuple[int, int], ...] = ()
    known: frozenset[tuple[int, str, int]] = frozenset()
    made: int = 0

    @property
    def asked(self) -> tuple[int, int, int]:
        """What windows are made of."""
        return self.windows, self.drafts, self.extra


@dataclass(frozen=True)
class State:
    """Everything that the scheduler knows.

    `contexts`: windows first, then prompt chunks. `readers` holds, per context and stage, the
    last launch that read what that stage handed off, or 0. `windows` counts all windows; `offers`
    and `holds` are those of all slots. Launch ids count from 1.
    """

    config: Config
    slots: tuple[Slot, ...]
    contexts: tuple[Context, ...]
    readers: tuple[tuple[int, ...], ...]
    waiting: tuple[tuple[Request, Tokens], ...] = ()
    next_id: int = 1
    windows: int = 0
    choice: Choice = Choice()
    costs: Costs = UNMEASURED
    offers: Odds = UNSEEN
    holds: Odds = UNSEEN

    def with_slot(self, index: int, slot: Slot) -> State:
        """This state with one slot changed."""
        return evolve(self, slots=_put(self.slots, index, slot))

    def with_context(self, index: int, context: Context) -> State:
        """This state with one context changed."""
        return evolve(self, contexts=_put(self.contexts, index, context))

    @property
    def decoding(self) -> int:
        """Slots whose text is being drawn."""
        return sum(s.phase in DECODING for s in self.slots)

    @property
    def idle(self) -> bool:
        """Is nothing queued, in flight or waiting?"""
        return not self.waiting and all(s.phase is Phase.FREE for s in self.slots)


#: A slot whose text is being drawn.
DECODING = frozenset({Phase.READY, Phase.WINDOW, Phase.DRAFTING})


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def initial_state(config: Config) -> State:
    """Every slot free, every context empty."""
    contexts = config.shape.groups + config.shape.prompt_contexts
    return State(
        config,
        slots=(Slot(),) * config.shape.slots,
        contexts=(Context(),) * contexts,
        readers=((0,) * (config.stages - 1),) * contexts,
    )
