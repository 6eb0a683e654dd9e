"""A crowd of requests that come and go as they like, for as long as a test wants."""

from __future__ import annotations

import random

from identity import HOLDS, Book, Heard, Rig, Watched, narrowed
from strata_runtime.device import Device
from strata_runtime.engine import Engine
from strata_runtime.request import Request
from strata_runtime.schedule import Schedule


class Crowd:
    """Requests that come and are cancelled at random, with drafters that are often wrong."""

    def __init__(self, rig: Rig, book: Book, device: Device, seed: int) -> None:
        """`device` is the rig's; its free memory is poison."""
        self._book, mtp = book, rig.bundle.manifest.shape.drafter == "mtp"
        self._random, self._heard = random.Random(seed), Heard()
        self.device = Watched(device)
        kinds = ("ngram", *HOLDS)
        self._engine = Engine(
            narrowed(rig.bundle.manifest, 6, 3, auto=True),
            self.device,
            drafter=None if mtp else lambda r: self._book.drafter(self._random.choice(kinds))(r),
            schedule=Schedule(),
            forced=(-1, -1, 0, -1, 1),
        )
        self._live: dict[int, Request] = {}
        self.texts = self.cancelled = 0

    def run(self, windows: int) -> None:
        """Until so many windows have been queued in all; every text that ends is compared."""
        while self.device.windows < windows:
            self._admit()
            for update in self._engine.pump():
                self._heard.add(update)
                if update.finish is not None:
                    self._compare(update.request_id)

    def drain(self) -> None:
        """Let what is live end."""
        while self._engine.busy:
            for update in self._engine.pump():
                self._heard.add(update)
                if update.finish is not None:
                    self._compare(update.request_id)

    def _admit(self) -> None:
        wish = self._random.randrange(10)
        if not self._live or (len(self._live) < wish and self._random.random() < 0.3):
            request = self._random.choice(self._book.requests)
            self._live[self._engine.submit(request)] = request
        elif self._random.random() < 0.01:
            number = self._random.choice(list(self._live))
            self._engine.cancel(number)
            del self._live[number]
            self._heard.tokens.pop(number, None)
            self.cancelled += 1

    def _compare(self, number: int) -> None:
        seed = self._live.pop(number).sampling.seed
        assert self._heard.ends.pop(number) == self._book.texts[seed]
        del self._heard.tokens[number]
        self.texts += 1
