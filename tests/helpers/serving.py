"""Serving on a rig whose order is drawn, where nothing that is free keeps what it held."""

from __future__ import annotations

import torch

from identity import Book, Heard, Rig, narrowed
from strata_runtime.drafters import Drafter
from strata_runtime.engine import Engine
from strata_runtime.request import Request
from strata_runtime.schedule import Schedule
from strata_runtime.state import Phase
from token_by_token import POISON, fill_free

#: Roles of arenas that a slot has a part of.
OF_SLOTS = ("cells", "states")


class Serving:
    """An engine and what was heard of its streams; cells and states are compared at each launch."""

    def __init__(
        self,
        rig: Rig,
        book: Book,
        schedule: Schedule,
        slots: int,
        groups: int,
        seed: int,
        forced: tuple[int, ...] = (),
    ) -> None:
        """`slots` and `groups` of the rig's; everything that is no weight is poisoned first."""
        self._rig, self._kind = rig, "none"
        self.book, self.heard, self.witness = book, Heard(), book.witness(rig)
        fill_free(rig.ordered.arenas, rig.bundle.manifest, POISON)
        rig.ordered.begin(seed, self.witness)
        mtp = rig.bundle.manifest.shape.drafter == "mtp"
        manifest = narrowed(rig.bundle.manifest, slots, groups, schedule.drafts is None)
        drafter = None if mtp else self._drafter
        self.engine = Engine(
            manifest, rig.ordered, drafter=drafter, schedule=schedule, forced=forced
        )
        self.wanted: dict[int, Request] = {}  # by the engine's number
        self.cancelled: set[int] = set()

    @property
    def live(self) -> list[int]:
        """Numbers of the requests of which more will be heard."""
        return [n for n in self.wanted if n not in self.heard.ends and n not in self.cancelled]

    def submit(self, index: int, kind: str) -> None:
        """A request of the book, with host drafts of this kind where the rig has host drafts."""
        self._kind = kind
        request = self.book.requests[index % len(self.book.requests)]
        self.wanted[self.engine.submit(request)] = request

    def cancel(self, number: int) -> None:
        """Nothing more will be heard of it."""
        self.engine.cancel(number)
        self.cancelled.add(number)

    def pump(self) -> None:
        """One completion; then everything that is free is poisoned."""
        for update in self.engine.pump():
            assert update.request_id not in self.cancelled
            self.heard.add(update)
        self._forget()

    def finish(self) -> None:
        """Drain, and compare every text, as far as it went."""
        while self.engine.busy:
            self.pump()
        assert self._rig.ordered.in_flight == 0
        for number, request in self.wanted.items():
            alone = self.book.texts[request.sampling.seed]
            if number in self.cancelled:
                part = tuple(self.heard.tokens.get(number, ()))
                assert part == alone.tokens[: len(part)]
            else:
                assert self.heard.ends[number] == alone

    def _drafter(self, request: Request) -> Drafter:
        return self.book.drafter(self._kind)(request)

    def _forget(self) -> None:
        """Poison scratch, which no launch may rely on, and cells and states of free slots."""
        plan, arenas = self._rig.bundle.manifest.memory["cpu"], self._rig.ordered.arenas
        slots = self.engine._state.slots
        awaited = self._rig.ordered.awaited  # commits of a text that has ended, perhaps
        free = [i for i, s in enumerate(slots) if s.phase is Phase.FREE and i not in awaited]
        for name, arena in plan.arenas.items():
            if arena.role == "scratch":
                arenas.arena(name).fill_(POISON)
        for name, buffer in plan.buffers.items():
            if plan.arenas[buffer.arena].role in OF_SLOTS:
                mine = arenas.buffer(name)
                for slot in free:
                    mine[slot].view(-1).view(torch.uint8).fill_(POISON)
