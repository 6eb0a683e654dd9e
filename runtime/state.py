"""The scheduler's state: frozen, hashable, copyable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from strata_runtime.bundle_format import Shape
from strata_runtime.launch import Tokens
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

    `in_flight` counts its windows and chunks; `served` is when a window last took it.
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


@dataclass(frozen=True)
class Context:
    """A window context: the slots of what is in flight in it, its last launch, its rows.

    `chain` is the launch of a draft program behind its window, or 0.
    """

    slots: tuple[int, ...] = ()
    last_launch: int = 0
    program_rows: int = 0
    chain: int = 0


@dataclass(frozen=True)
class Config:
    """What a bundle allows, and what is asked of it.

    `chunk_rows` bounds a prompt chunk's live rows (tests, benchmarks).
    """

    stages: int
    shape: Shape
    chunk_rows: int | None = None
    schedule: Schedule = CHOSEN


@dataclass(frozen=True)
class State:
    """Everything that the scheduler knows.

    `contexts`: windows first, then prompt chunks. `readers` holds, per context and stage, the
    last launch that read what that stage handed off, or 0. `costs` holds (rows, ms) of prompt
    programs as last measured. Launch ids count from 1.
    """

    config: Config
    slots: tuple[Slot, ...]
    contexts: tuple[Context, ...]
    readers: tuple[tuple[int, ...], ...]
    waiting: tuple[tuple[Request, Tokens], ...] = ()
    next_id: int = 1
    costs: tuple[tuple[int, float], ...] = ()

    def with_slot(self, index: int, slot: Slot) -> State:
        """This state with one slot changed."""
        return replace(self, slots=_put(self.slots, index, slot))

    def with_context(self, index: int, context: Context) -> State:
        """This state with one context changed."""
        return replace(self, contexts=_put(self.contexts, index, context))

    def with_cost(self, rows: int, ms: float) -> State:
        """This state with a prompt program's time as last measured."""
        others = tuple(c for c in self.costs if c[0] != rows)
        return replace(self, costs=tuple(sorted((*others, (rows, ms)))))

    @property
    def decoding(self) -> int:
        """Slots whose text is being drawn."""
        return sum(s.phase in _DECODING for s in self.slots)

    @property
    def idle(self) -> bool:
        """Is nothing queued, in flight or waiting?"""
        return not self.waiting and all(s.phase is Phase.FREE for s in self.slots)


_DECODING = frozenset({Phase.READY, Phase.WINDOW, Phase.DRAFTING})


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
