"""Files of times: curves between and beyond what is given, and every fault by its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from clock_case import make_times
from strata_runtime.errors import OptionError
from strata_runtime.times import Curve, parse_times, read_times


@pytest.mark.parametrize(
    ("rows", "ms"),
    [(1, 10), (3, 12), (4, 13), (5, 14.5), (6, 16), (7, 17.5), (8, 19), (10, 22), (0, 9)],
)
def test_a_line_between_and_beyond_the_points(rows: int, ms: float) -> None:
    assert make_times().ms(0, "exec", rows) == pytest.approx(ms)


def test_never_below_zero() -> None:
    falling = Curve(((2, 3.0), (4, 1.0)))
    assert [falling.at(n) for n in (1, 3, 5, 6, 100)] == [4.0, 2.0, 0.0, 0.0, 0.0]
    assert Curve(((2, 1.0), (4, 9.0))).at(1) == 0.0


def test_one_point_holds_for_every_count() -> None:
    assert [Curve(((4, 2.5),)).at(n) for n in (0, 1, 8, 512)] == [2.5] * 4


def test_a_kind_that_is_not_given_is_free() -> None:
    times = make_times(draft={"1": 1.7, "3": 3.1})
    kinds = ("commit", "commit_row", "prompt", "copy", "something new")
    assert [times.ms(0, kind, 1) for kind in kinds] == [0.0] * 5
    assert times.ms(0, "draft", 2) == pytest.approx(2.4)
    assert times.ms(0, "draft", 0) == pytest.approx(1.0)  # a chain that only catches up


def test_a_stage_of_its_own() -> None:
    times = make_times(commit={"1": 2}, stages=[{}, {"exec": {"1": 5}, "prompt": {"32": 40}}])
    assert [times.ms(stage, "exec", 1) for stage in (0, 1)] == [10.0, 5.0]
    assert [times.ms(stage, "commit", 1) for stage in (0, 1)] == [2.0, 2.0]
    assert [times.ms(stage, "prompt", 32) for stage in (0, 1)] == [0.0, 40.0]
    parse_times('{"stages": [{"exec": {"1": 1}}, {"exec": {"1": 2}}]}')


def test_everything_else_has_a_default() -> None:
    times = make_times()
    assert (times.acceptance, times.host_ms) == ((0.0,), 0.0)
    assert (times.streams, times.prompt_tokens, times.max_tokens) == (None, 1, 512)
    given = make_times(acceptance=[0.9, 1], host_ms=0.5, streams=3, prompt_tokens=40, max_tokens=9)
    assert (given.acceptance, given.host_ms) == ((0.9, 1.0), 0.5)
    assert (given.streams, given.prompt_tokens, given.max_tokens) == (3, 40, 9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "the file is [], expected an object"),
        ("{}", "exec is missing"),
        ('{"stages": [{"exec": {"1": 1}}, {}]}', "exec is missing"),
        ('{"exec": {"1": 1}, "exce": 1}', "exce is unknown; known are acceptance, commit"),
        ('{"exec": {"1": 1}, "exec": {"1": 2}}', "exec is there twice"),
        ('{"exec": {"1": 1, "1": 2}}', "1 is there twice"),
        ('{"exec": 10}', "exec is 10, expected an object"),
        ('{"exec": {}}', "exec is empty"),
        ('{"exec": {"one": 1}}', "exec.one is no number of rows"),
        ('{"exec": {"01": 1}}', "exec.01 is no number of rows"),
        ('{"exec": {"-1": 1}}', "exec.-1 is no number of rows"),
        ('{"exec": {"1": "10"}}', 'exec.1 is "10", expected a number'),
        ('{"exec": {"1": true}}', "exec.1 is true, expected a number"),
        ('{"exec": {"1": null}}', "exec.1 is null, expected a number"),
        ('{"exec": {"1": NaN}}', "exec.1 is out of range"),
        ('{"exec": {"1": 1e999}}', "exec.1 is out of range"),
        ('{"exec": {"4": -2.5}}', "exec.4 is -2.5, which is negative"),
        ('{"exec": {"1": 1}, "stages": {}}', "stages is {}, expected a list"),
        ('{"exec": {"1": 1}, "stages": [1]}', "stages.0 is 1, expected an object"),
        ('{"exec": {"1": 1}, "stages": [{}, {"host_ms": 1}]}', "stages.1.host_ms is unknown"),
        ('{"exec": {"1": 1}, "stages": [{"draft": {"1": -1}}]}', "stages.0.draft.1 is -1"),
        ('{"exec": {"1": 1}, "acceptance": []}', "acceptance is empty"),
        ('{"exec": {"1": 1}, "acceptance": 1.5}', "acceptance is 1.5, expected a probability"),
        ('{"exec": {"1": 1}, "acceptance": [1, -0.5]}', "acceptance.1 is -0.5, expected"),
        ('{"exec": {"1": 1}, "acceptance": "high"}', 'acceptance is "high", expected a number'),
        ('{"exec": {"1": 1}, "host_ms": -1}', "host_ms is -1, which is negative"),
        ('{"exec": {"1": 1}, "streams": 0}', "streams is 0, expected a whole number"),
        ('{"exec": {"1": 1}, "max_tokens": 1.5}', "max_tokens is 1.5, expected a whole number"),
        ('{"exec": {"1": 1}, "prompt_tokens": true}', "prompt_tokens is true, expected"),
    ],
)
def test_faults_name_their_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        read_times(path)
    assert str(caught.value).startswith(f"{path}: {words}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="none: cannot be read: No such file"):
        read_times(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(OptionError, match="latin: cannot be read: not UTF-8"):
        read_times(tmp_path / "latin")
