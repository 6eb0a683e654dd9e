"""Streams that come, go and are cancelled at any moment: every text is what it is alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from identity import HOLDS, Rigs
from recurrent import install
from serving import Serving
from strata_runtime.schedule import Schedule

KINDS = ("none", "ngram", *HOLDS)
#: Live streams, one phase after the other.
LIVE = (1, 2, 3, 4, 2, 1)
#: Of one window after the other at most so many drafts are accepted; -1: as many as hold.
FORCED = (-1, 0, 2, 0, 1, -1, 3)


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """All rigs, made when they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        made = Rigs(tmp_path_factory.mktemp("rigs"))
        yield made
        made.close()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("family", "stages", "kind"),
    [
        ("llama", 2, "mtp"),
        ("recurrent", 2, "replay random"),
        ("recurrent", 1, "mtp"),
        ("llama", 4, "replay all"),
    ],
)
def test_one_two_three_four_two_one_streams(
    rigs: Rigs, family: str, stages: int, kind: str, groups: int
) -> None:
    """Regrouped while serving, with forced rejections, on memory that forgets what it may."""
    rig, book = rigs.rig(family, stages, kind == "mtp"), rigs.book(family)
    schedule = Schedule(drafts=3 if groups == 2 else None)
    serving = Serving(rig, book, schedule, 4, groups, seed=groups, forced=FORCED)
    numbers = count()
    for live in LIVE:
        for _ in range(30):  # so that texts end, and begin, within a phase
            while len(serving.live) < live:
                serving.submit(next(numbers), kind)
            serving.pump()
            while len(serving.live) > live and _heard(serving, serving.live[0]):
                serving.cancel(serving.live[0])
        assert len(serving.live) <= max(live, 2)
    serving.finish()
    assert all(serving.witness.checked) or family == "llama"


def _heard(serving: Serving, number: int) -> bool:
    return bool(serving.heard.tokens.get(number))


class Streams(RuleBasedStateMachine):
    """Any rig, any schedule, anything at any time."""

    rigs: Rigs

    @initialize(
        family=st.sampled_from(["llama", "recurrent"]),
        stages=st.sampled_from([1, 2, 4]),
        mtp=st.booleans(),
        slots=st.integers(1, 8),
        groups=st.integers(1, 4),
        schedule=st.builds(
            Schedule,
            windows=st.none(),
            slots=st.sampled_from([None, 1, 2, 3]),
            drafts=st.sampled_from([None, 0, 1, 3, 7]),
            early_commits=st.booleans(),
        ),
        seed=st.integers(0, 999),
        forced=st.lists(st.integers(-1, 3), max_size=4).map(tuple),
    )
    def begin(
        self,
        family: str,
        stages: int,
        mtp: bool,
        slots: int,
        groups: int,
        schedule: Schedule,
        seed: int,
        forced: tuple[int, ...],
    ) -> None:
        rig, book = self.rigs.rig(family, stages, mtp), self.rigs.book(family)
        self.serving = Serving(rig, book, schedule, slots, min(groups, slots), seed, forced)

    @rule(index=st.integers(0, 18), kind=st.sampled_from(KINDS))
    def submit(self, index: int, kind: str) -> None:
        """Any request, though it may be decoding already."""
        self.serving.submit(index, kind)

    @precondition(lambda self: self.serving.live)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        """Waiting, reading its prompt, or decoding."""
        live = self.serving.live
        self.serving.cancel(live[which % len(live)])

    @precondition(lambda self: self.serving.engine.busy)
    @rule(times=st.integers(1, 25))
    def pump(self, times: int) -> None:
        """Completions of windows, chains, commits and chunks."""
        for _ in range(times):
            if self.serving.engine.busy:
                self.serving.pump()

    def teardown(self) -> None:
        """All texts, as far as they went."""
        if hasattr(self, "serving"):
            self.serving.finish()


def _run_streams(rigs: Rigs, examples: int, steps: int) -> None:
    machine = type("Streams", (Streams,), {"rigs": rigs})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_streams_that_do_anything(rigs: Rigs) -> None:
    """Found by hypothesis, which makes a failing run as short as it can."""
    _run_streams(rigs, examples=10, steps=20)


@pytest.mark.soak
def test_many_streams_that_do_anything(rigs: Rigs) -> None:
    """The same for longer."""
    _run_streams(rigs, examples=400, steps=50)
