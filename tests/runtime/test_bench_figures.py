"""What strata-bench makes of a run: figures of records made by hand."""

from __future__ import annotations

import json

import pytest

from strata_runtime.bench import Text, difference
from strata_runtime.bench_figures import (
    Arrival,
    Beside,
    Ran,
    Record,
    combined,
    figures,
    program_ms,
    window_ms,
)
from strata_runtime.bench_report import acceptance_by_position, recorded
from strata_runtime.device import Done
from strata_runtime.drafters import acceptance
from strata_runtime.errors import OptionError
from strata_runtime.launch import Launch, Table
from strata_runtime.times import parse_times


def ran(number: int, stage: int, program: str, start: float, ms: float) -> Ran:
    """A launch that is complete; its table holds nothing."""
    table = Table(program.split(".")[0], 0, (), ())
    return Launch(number, stage, program, table), Done(number, stage, start, ms)


def record() -> Record:
    """Two streams on two stages: one accepts 2 drafts and then 1, the other none."""
    arrivals = [
        Arrival(0, 1.0, (1,)),
        Arrival(1, 1.5, (1,)),
        Arrival(0, 2.0, (2, 3, 4), drafted=3),
        Arrival(1, 2.25, (2,), drafted=1),
        Arrival(0, 2.5, (5, 6), drafted=2),
        Arrival(1, 3.5, (3,)),
    ]
    launches = [
        ran(1, 0, "exec.r1", 10.0, 250.0),
        ran(3, 0, "exec.r4", 10.25, 500.0),
        ran(2, 1, "exec.r1", 10.5, 500.0),
        ran(5, 0, "prompt.r32", 10.75, 250.0),
        ran(4, 1, "exec.r4", 11.0, 1000.0),
    ]
    return Record(0.5, arrivals, launches)


def test_rates() -> None:
    """While all streams decode; of each stream from its own first token to its last."""
    found = figures(record())
    assert found.tokens_per_s == (3 + 1 + 2) / (2.5 - 1.5)
    assert found.elapsed_s == 3.5 - 0.5
    assert found.per_stream == (5 / 1.5, 2 / 2.0)
    assert (found.tokens_per_window, found.tokens_per_segment) == (9 / 2, 9 / 6)


def test_a_rate_where_streams_never_decode_together() -> None:
    """Of the whole run, its prompts included."""
    arrivals = [Arrival(0, 1.0, (1,)), Arrival(0, 1.25, (2,)), Arrival(1, 1.5, (1, 2))]
    assert figures(Record(0.5, arrivals)).tokens_per_s == 4.0


def test_rates_of_single_tokens_count_from_the_submission() -> None:
    found = figures(Record(0.5, [Arrival(0, 1.0, (1,)), Arrival(1, 1.5, (1,))]))
    assert (found.tokens_per_s, found.per_stream) == (2.0, (2.0, 1.0))
    assert (found.longest_gap_ms, found.stage_busy) == (None, ())
    assert (found.drafted_by_position, found.accepted_by_position) == ((), ())


def test_drafts_by_position() -> None:
    found = figures(record())
    assert (found.drafted, found.accepted) == (6, 3)
    assert found.drafted_by_position == (3, 2, 1)
    assert found.accepted_by_position == (2, 1, 0)
    assert acceptance_by_position([record()]) == [2 / 3, 1 / 2, 0.0]


def test_gaps() -> None:
    """Between arrivals of one stream, however many tokens an arrival has."""
    found = figures(record())
    assert found.longest_gap_ms == 1250.0
    assert found.longest_gap_beside_ms is None and found.prompt_tokens_per_s is None
    one = record()
    one.beside = Beside(tokens=32, submitted=1.0, answered=2.0)
    found = figures(one)
    assert found.prompt_tokens_per_s == 32.0
    assert found.longest_gap_beside_ms == 1000.0


def test_stages() -> None:
    """The span is that of the launches, in the device's clock."""
    assert figures(record()).stage_busy == (1000 / 2000, 1500 / 2000)


def test_times_of_programs_and_windows() -> None:
    """Medians over all launches; a window lasts from its first stage to its last."""
    slower = record()
    slower.launches = [ran(1, 0, "exec.r1", 0.0, 350.0), ran(2, 1, "exec.r1", 1.0, 1000.0)]
    found = program_ms([record(), slower])
    assert found[0, "exec", 1] == 300.0 and found[1, "exec", 1] == 750.0
    assert found[0, "prompt", 32] == 250.0
    assert window_ms([record(), slower]) == {1: (1000 + 2000) / 2, 4: 1750.0}


def test_repeats() -> None:
    """Medians of what is measured; counts of the repeat whose speed is the median."""
    slow, fast = record(), record()
    slow.arrivals[4] = Arrival(0, 3.25, (5, 6), drafted=2)
    fast.arrivals[4] = Arrival(0, 2.5, (5, 6, 7, 8), drafted=3)
    runs = [figures(fast), figures(record()), figures(slow)]
    found = combined(runs)
    assert found.tokens_per_s == runs[1].tokens_per_s
    assert (found.accepted, found.drafted_by_position) == (3, (3, 2, 1))
    assert found.longest_gap_ms == 1250.0
    assert combined(runs[::2]).tokens_per_s == (runs[0].tokens_per_s + runs[2].tokens_per_s) / 2


def test_recorded_times() -> None:
    """Each stage's own, and their mean over the stages that ran the program."""
    text = Text((3, 4), (), "aa")
    value = recorded([record()], 2, [(1, 2)], [text])
    assert value.pop("texts") == [{"prompt": [1, 2], "tokens": [3, 4], "logits_hash": "aa"}]
    times = parse_times(json.dumps(value))
    assert times.ms(0, "exec", 4) == 500.0 and times.ms(1, "exec", 4) == 1000.0
    assert times.curves["exec"].at(1) == 375.0 and times.curves["prompt"].at(32) == 250.0
    assert times.acceptance == (0.667, 0.5, 0.0)
    assert (times.streams, times.prompt_tokens, times.max_tokens) == (1, 2, 2)


def test_differences() -> None:
    """The first token, and the first token's logits that are others, as far as they are known."""
    alone = Text((1, 2, 3), (7, 8, 9), "aa")
    assert difference(alone, alone) is None
    other = Text((1, 2, 4), (7, 6, 5), "bb")
    assert difference(other, alone) == "token 2 is 4, alone 3, logits differ from token 1 on"
    other = Text((1, 2, 3), (7, 8, 5), "bb")
    assert difference(other, alone) == (
        "logits hash differs, tokens equal, logits differ from token 2 on"
    )
    assert difference(Text((1, 2, 3), (), "bb"), alone) == "logits hash differs, tokens equal"


def test_acceptance() -> None:
    """A pattern goes on and on; a probability is that of all positions, and of the seed."""
    assert [acceptance("1101")(i) for i in range(6)] == [True, True, False, True, True, True]
    held = [acceptance("0.7", seed=3)(i) for i in range(2000)]
    assert 0.67 < sum(held) / 2000 < 0.73
    assert held == [acceptance("0.7", seed=3)(i) for i in range(2000)]
    assert held != [acceptance("0.7", seed=4)(i) for i in range(2000)]
    assert all(acceptance("1.0")(i) and not acceptance("0.0")(i) for i in range(99))
    for spec in ("", "1.5", "-0.1", "nan", "12", "half"):
        with pytest.raises(OptionError, match="neither a probability"):
            acceptance(spec)
