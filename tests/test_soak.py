"""Ten thousand windows: nothing stalls, nothing grows, and every text is what it is alone."""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crowd import Crowd
from identity import Rigs
from recurrent import install
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


@pytest.mark.parametrize(("family", "mtp"), [("llama", True), ("recurrent", False)])
def test_ten_thousand_windows(rigs: Rigs, family: str, mtp: bool) -> None:
    """Random admissions, cancels, rejections."""
    faulthandler.dump_traceback_later(STALLED, exit=True)
    try:
        rig = rigs.rig(family, 2, mtp)
        fill_free(rig.threads.arenas, rig.bundle.manifest, POISON)
        crowd = Crowd(rig, rigs.book(family), rig.threads, seed=1)
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
