"""run_pass: verified, timed, dumped, stopped; and the passes in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compile_case import contents, write_case
from strata_compile.passes import Described, Drawn, PassRunner, Stopped, Verified
from strata_compile.pipeline import PASSES, CompileOptions, compile_plan
from strata_runtime.bundle_load import load_bundle


@dataclass
class Result:
    """What a pass made; notes what is asked of it."""

    fault: str = ""
    asked: list[str] = field(default_factory=list)

    def verify(self) -> None:
        """The rule: no fault."""
        self.asked.append("verify")
        assert not self.fault, f"the operator {self.fault}"

    def describe(self) -> str:
        """Some text."""
        self.asked.append("describe")
        return "one\ntwo"

    def dot(self) -> str:
        """Some graph."""
        return "digraph g {}\n"


@dataclass
class Told:
    """Hears of the passes."""

    names: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __call__(self, name: str, seconds: float) -> None:
        self.names.append(name)
        self.seconds.append(seconds)


def give(result: Result) -> Callable[[], Result]:
    return lambda: result


def test_a_pass_gets_its_arguments_and_gives_its_result() -> None:
    def mixed(a: int, b: int, *, c: int) -> int:
        return a + 10 * b + 100 * c

    assert PassRunner().run_pass("mixed", mixed, 1, 2, c=3) == 321


def test_a_result_is_verified_before_it_is_given() -> None:
    result = Result()
    assert PassRunner().run_pass("one", give(result)) is result
    assert result.asked == ["verify"]


def test_protocols_are_met_by_shape() -> None:
    assert all(isinstance(Result(), kind) for kind in (Verified, Described, Drawn))
    assert not any(isinstance(7, kind) for kind in (Verified, Described, Drawn))
    assert PassRunner().run_pass("seven", lambda: 7) == 7  # no rules of its own


def test_a_broken_result_goes_no_further() -> None:
    told = Told()
    runner = PassRunner(report=told)
    runner.run_pass("sound", give(Result()))
    with pytest.raises(AssertionError, match=r"the operator blk\.0\.q"):
        runner.run_pass("broken", give(Result("blk.0.q")))
    assert told.names == list(runner.seconds) == ["sound"]


def test_a_broken_result_is_not_stopped_at() -> None:
    with pytest.raises(AssertionError, match="the operator x"):
        PassRunner(until="broken").run_pass("broken", give(Result("x")))


def test_passes_are_timed_and_reported_in_order() -> None:
    told = Told()
    runner = PassRunner(report=told)
    for name in ("b", "a", "c"):
        runner.run_pass(name, give(Result()))
    assert told.names == ["b", "a", "c"]
    assert runner.seconds == dict(zip(told.names, told.seconds, strict=True))
    assert min(told.seconds) >= 0


def test_dumps_are_numbered_and_named_by_pass(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "dumps"
    runner = PassRunner(dump=folder)
    runner.run_pass("first", give(Result()))
    runner.run_pass("plain", lambda: 7)
    runner.run_pass("third", give(Result()))
    assert contents(folder) == {
        f"{number}_{name}.{kind}": data
        for number, name in ((10, "first"), (30, "third"))
        for kind, data in (("txt", b"one\ntwo\n"), ("dot", b"digraph g {}\n"))
    }


def test_without_a_dump_nothing_is_described() -> None:
    result = Result()
    PassRunner().run_pass("one", give(result))
    assert "describe" not in result.asked


def test_stopped_after_the_pass_and_its_dump(tmp_path: Path) -> None:
    told = Told()
    runner = PassRunner(dump=tmp_path, until="b", report=told)
    runner.run_pass("a", give(Result()))
    with pytest.raises(Stopped, match="b"):
        runner.run_pass("b", give(Result()))
    assert told.names == ["a", "b"]
    assert {"10_a.txt", "20_b.txt"} <= contents(tmp_path).keys()


def compiled(folder: Path, **runner: object) -> tuple[PassRunner, Told]:
    """Compiles a tiny case into folder/bundle; a stop is no error."""
    plan = write_case(folder, "stages: 2\nprompt: {sizes: [8]}\n")
    told = Told()
    run = PassRunner(report=told, **runner)  # type: ignore[arg-type]
    try:
        compile_plan(plan, CompileOptions(folder / "bundle", folder), run)
    except Stopped as stopped:
        assert str(stopped) == run.until
    return run, told


@pytest.mark.parametrize("until", PASSES)
def test_until_each_pass(tmp_path: Path, until: str) -> None:
    runner, told = compiled(tmp_path, until=until)
    expected = list(PASSES[: PASSES.index(until) + 1])
    assert list(runner.seconds) == told.names == expected
    assert (tmp_path / "bundle").exists() == (until == PASSES[-1])
    beside = {p.name for p in tmp_path.iterdir()} - {"bundle"}
    assert beside == {"plan.yaml", "tiny.gguf"}


def test_all_passes(tmp_path: Path) -> None:
    runner, told = compiled(tmp_path)
    assert tuple(told.names) == tuple(runner.seconds) == PASSES
    assert PASSES[0] == "plan" and PASSES[-1] == "bundle"
    assert len(load_bundle(tmp_path / "bundle").programs) == 2 * 10


def test_dumps_of_a_compile(tmp_path: Path) -> None:
    compiled(tmp_path, dump=tmp_path / "dump")
    found = contents(tmp_path / "dump")
    numbers = {name: (PASSES.index(name) + 1) * 10 for name in PASSES}
    for file, data in found.items():
        number, _, name = Path(file).stem.partition("_")
        assert int(number) == numbers[name] and len(data) > 20
    texts = {Path(file).stem[3:] for file in found if file.endswith(".txt")}
    assert texts >= {"model", "stages", "programs", "memory"}
    graph = found[f"{numbers['model']}_model.dot"].decode()
    assert graph.startswith("digraph model {") and '"blk.1.ffn_down"' in graph
    assert b"1.exec.r8" in found[f"{numbers['programs']}_programs.txt"]


def test_a_dump_changes_no_bundle(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    compiled(tmp_path / "with", dump=tmp_path / "dump")
    compiled(tmp_path / "without")
    one, two = (contents(tmp_path / name / "bundle" / "programs") for name in ("with", "without"))
    assert one == two and len(one) == 20
