"""Ten thousand windows: nothing stalls, nothing grows, and every text is what it is alone."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from identity import HOLDS, Heard, Rigs, Watched, narrowed
from recurrent import install
from strata_runtime.engine import Engine
from strata_runtime.request import Request
from strata_runtime.schedule import Schedule
from token_by_token import POISON, fill_free

pytestmark = pytest.mark.soak
WINDOWS = 10_000
#: Windows after which everything that is kept has been made once.
WARM = 2_000
#: What the allocator may take more for the same work, in bytes.
SLACK = 4 << 20
#: Seconds after which a run has stalled: it takes a few minutes.
STALLED = 1800


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """All rigs, made when they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        made = Rigs(tmp_path_factory.mktemp("rigs"))
        yield made
        made.close()


def held() -> tuple[int, int, int]:
    """Resident bytes, threads, open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return pages * os.sysconf("SC_PAGE_SIZE"), threading.active_count(), files


class Crowd:
    """Requests that come and are cancelled at random, with drafters that are often wrong."""

    def __init__(self, rigs: Rigs, family: str, mtp: bool, seed: int) -> None:
        rig, self._book = rigs.rig(family, 2, mtp), rigs.book(family)
        fill_free(rig.threads.arenas, rig.bundle.manifest, POISON)
        self._random, self._heard = random.Random(seed), Heard()
        self.device = Watched(rig.threads)
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


@pytest.mark.parametrize(("family", "mtp"), [("llama", True), ("recurrent", False)])
def test_ten_thousand_windows(rigs: Rigs, family: str, mtp: bool) -> None:
    """Random admissions, cancels, rejections."""
    faulthandler.dump_traceback_later(STALLED, exit=True)
    try:
        crowd = Crowd(rigs, family, mtp, seed=1)
        crowd.run(WARM)
        memory, threads, files = held()
        crowd.run(WINDOWS)
        grown, threads_then, files_then = held()
        crowd.drain()
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert (threads_then, files_then) == (threads, files)
    assert grown - memory < SLACK
    assert crowd.texts > WINDOWS / 20 and crowd.cancelled > 50
    assert 0 < crowd.device.accepted < crowd.device.drafted
