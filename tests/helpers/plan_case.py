"""A plan from a text, and what is said of a broken one."""

from pathlib import Path

import pytest

from strata_compile.errors import PlanError
from strata_compile.plan.loader import parse_plan
from strata_compile.plan.schema import Plan

SOURCE = Path("plan.yaml")


def parse(text: str) -> Plan:
    """The plan."""
    return parse_plan(text, SOURCE)


def fault(text: str) -> PlanError:
    """The error that a text must give."""
    with pytest.raises(PlanError) as caught:
        parse(text)
    return caught.value


def check_report(error: PlanError, line: int, field: str, words: str) -> None:
    """One printable line: the plan's file, line and field, and these words."""
    report = str(error)
    start = f"plan.yaml:{line}: {field}: " if field else f"plan.yaml:{line}: "
    assert report.startswith(start)
    assert (error.file, error.line, error.field) == (SOURCE, line, field)
    for word in words.split("|"):
        assert word in error.message
    assert len(report.splitlines()) == 1 and report.isprintable()
    assert len(report) < 300
