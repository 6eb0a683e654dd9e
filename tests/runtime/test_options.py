"""STRATA_* variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_runtime.errors import OptionError
from strata_runtime.options import VARIABLES, read_environment


def test_defaults() -> None:
    found = read_environment({})
    assert found.cache == Path.home() / ".cache" / "strata-compile"
    assert (found.dump, found.threads, found.no_compile) == (None, None, False)


def test_values() -> None:
    given = {"STRATA_CACHE": "/a/b", "STRATA_DUMP": "dump", "STRATA_THREADS": "12"}
    given["STRATA_NO_COMPILE"] = "1"
    found = read_environment(given)
    assert found.no_compile
    assert (found.cache, found.dump, found.threads) == (Path("/a/b"), Path("dump"), 12)
    assert given.keys() == VARIABLES.keys()


def test_an_empty_value_is_none() -> None:
    assert read_environment(dict.fromkeys(VARIABLES, "")) == read_environment({})


def test_the_process_is_asked_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_THREADS", "3")
    assert read_environment().threads == 3


def test_other_variables_are_not_ours() -> None:
    assert read_environment({"STRATACACHE": "x", "CUDA_VISIBLE_DEVICES": ""}).threads is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("STRATA_CASHE", "did you mean STRATA_CACHE?"),
        ("STRATA_THREAD", "did you mean STRATA_THREADS?"),
        ("STRATA_QQQQQQQQQQQQQQ", "STRATA_CACHE, STRATA_DUMP, STRATA_NO_COMPILE, STRATA_THREADS"),
    ],
)
def test_an_unknown_variable(name: str, expected: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}: unknown variable") as caught:
        read_environment({name: ""})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "two", " 4", "4 ", "0x4", "²", "1025", "9" * 5000]
)
def test_threads_out_of_range(text: str) -> None:
    with pytest.raises(OptionError, match=r"^STRATA_THREADS: .*from 1 to 1024"):
        read_environment({"STRATA_THREADS": text})


@pytest.mark.parametrize("text", ["1", "1024", "007"])
def test_threads_in_range(text: str) -> None:
    assert read_environment({"STRATA_THREADS": text}).threads == int(text)


def test_zero_is_no() -> None:
    assert not read_environment({"STRATA_NO_COMPILE": "0"}).no_compile


@pytest.mark.parametrize("text", ["2", "yes", "true", " 1", "01"])
def test_a_switch_is_0_or_1(text: str) -> None:
    with pytest.raises(OptionError, match=r"^STRATA_NO_COMPILE: '.*' is not 0 or 1$"):
        read_environment({"STRATA_NO_COMPILE": text})
