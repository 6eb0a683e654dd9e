"""strata-inspect --simulate: figures by hand, whole pipelines, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gguf_maker
from clock_case import DRAFT, EXEC, make_manifest, make_times
from replayer import compile_bundle
from strata_compile.debug import cli
from strata_compile.debug.simulate import Simulation, simulate
from strata_runtime.errors import OptionError, RequestError
from strata_runtime.records import decode
from strata_runtime.times import Times

CONTEXT = 240


def test_one_stream_by_hand() -> None:
    """Three stages of 10 ms, no drafts: a token every 30 ms, each stage works a third of it."""
    found = simulate(make_manifest(3, 2, 2), make_times(streams=1, max_tokens=11))
    assert (found.streams, found.tokens, found.span_tokens) == (1, 11, 10)
    assert (found.elapsed_ms, found.span_ms) == pytest.approx((330, 300))
    assert found.tokens_per_s == found.tokens_per_s_and_stream == pytest.approx(1000 / 30)
    assert found.longest_gap_ms == pytest.approx(30)
    assert (found.windows, found.windows_by_rows) == (10, {"1": 10})
    assert (found.tokens_per_window, found.drafted, found.accepted) == (1.0, 0, 0)
    assert found.stage_busy == pytest.approx((1 / 3,) * 3)
    assert (found.exec_ms, found.draft_ms) == pytest.approx((10, 0))
    assert found.bound_tokens_per_s == pytest.approx(100)


def test_one_token_each_is_measured_as_a_whole() -> None:
    found = simulate(make_manifest(1, 2, 1), make_times(max_tokens=1))
    assert (found.tokens, found.span_tokens, found.span_ms) == (2, 2, found.elapsed_ms)
    assert found.longest_gap_ms == 0.0


def test_launches_that_are_free_divide_nothing_by_zero() -> None:
    found = simulate(make_manifest(2), Times({}))
    assert (found.tokens, found.elapsed_ms, found.tokens_per_s) == (512, 0.0, 0.0)


def test_more_streams_than_slots() -> None:
    """Slots are full until fewer streams than slots are left."""
    found = simulate(make_manifest(2, 2, 2), make_times(streams=7, max_tokens=20))
    assert found.tokens == 7 * 20 and found.span_ms > found.elapsed_ms / 2
    assert found.tokens_per_s_and_stream == pytest.approx(found.tokens_per_s / 2)


def test_the_host_drafts_too() -> None:
    times = make_times(acceptance=1.0, max_tokens=400)
    found = simulate(make_manifest(1, drafter="ngram", depth=3), times)
    assert found.accepted == found.drafted > 0
    assert found.tokens_per_window > 3.5 and found.draft_ms == 0.0


def test_a_slow_host_costs_tokens() -> None:
    manifest = make_manifest(2, 2, 2)
    rates = [simulate(manifest, make_times(host_ms=ms)).tokens_per_s for ms in (0, 1, 5)]
    assert rates[0] > rates[1] > rates[2]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_drafts_survive_the_pipeline(stages: int) -> None:
    """As many slots and windows as stages: the last stage never waits, for any stream's verdict.

    Drafts bring 1.8 times what the same pipeline brings without them.
    """
    times = make_times(draft=DRAFT, acceptance=0.8, max_tokens=2000)
    drafted = simulate(make_manifest(stages, stages, stages, "mtp", 3), times)
    plain = simulate(make_manifest(stages, stages, stages), times)
    assert drafted.tokens_per_s == pytest.approx(drafted.bound_tokens_per_s, rel=0.02)
    assert drafted.tokens_per_s >= 1.8 * plain.tokens_per_s
    assert plain.tokens_per_s == pytest.approx(100, rel=0.02)


def test_faults_of_the_file_and_the_bundle() -> None:
    with pytest.raises(OptionError, match="stages has 1 items, the bundle has 2 stages"):
        simulate(make_manifest(2), make_times(stages=[{}]))
    with pytest.raises(RequestError, match="the prompt has 70000 tokens"):
        simulate(make_manifest(2), make_times(prompt_tokens=70000))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages with a drafting layer; its model files are gone."""
    folder = tmp_path_factory.mktemp("bundle")
    model = gguf_maker.write_tiny_llama(folder / "tiny.gguf", layers=2)
    layer = gguf_maker.write_tiny_nextn(folder / "layer.gguf", layers=2)
    keys = {"stages": 2, "slots": 2, "groups": 2, "context": CONTEXT}
    draft = f"{{kind: mtp, model: {layer}, depth: 3}}"
    found = compile_bundle(folder, model, **keys, prompt="{sizes: [16]}", draft=draft)
    model.unlink()
    layer.unlink()
    return found.folder


def times_file(folder: Path, **keys: Any) -> str:
    """A file of times; its path."""
    path = folder / "times.json"
    path.write_text(json.dumps({"exec": EXEC, "draft": DRAFT, "acceptance": 0.8, **keys}))
    return str(path)


def test_the_command_as_json(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path
) -> None:
    options = ["--simulate", times_file(tmp_path, prompt={"16": 30}, prompt_tokens=40), "--json"]
    outputs = []
    for _ in range(2):
        assert cli.main([str(bundle), *options]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    found = decode(Simulation, json.loads(outputs[0]), "stdout")
    assert (found.stages, found.slots, found.groups) == (2, 2, 2)
    assert (found.drafter, found.draft_depth, found.streams) == ("mtp", 3, 2)
    assert found.tokens == 2 * (CONTEXT - 40 + 1)  # the context ends the texts
    assert sum(found.windows_by_rows.values()) == found.windows
    assert 0 < found.accepted < found.drafted
    assert 0 < found.tokens_per_s <= 1.02 * found.bound_tokens_per_s


def test_the_command_for_people(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    options = ["--simulate", times_file(tmp_path, max_tokens=50), "--trace", str(trace)]
    assert cli.main([str(bundle), *options]) == 0
    out = capsys.readouterr().out
    for words in ("tokens/s", "a stream", "bound", "of which", "busy", "stage 1", "longest gap"):
        assert words in out
    assert "drafter      mtp, at most 3 drafts" in out and "100 tokens in" in out
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["cat"] for e in events if e["ph"] == "X"} >= {"exec", "draft"}


@pytest.mark.parametrize(
    ("keys", "options", "words"),
    [
        ({"exce": 1}, [], "times.json: exce is unknown"),
        ({"exec": {"1": "x"}}, [], 'times.json: exec.1 is "x", expected a number'),
        ({"stages": [{}]}, [], "stages has 1 items, the bundle has 2 stages"),
        ({"prompt_tokens": 1000}, [], "the prompt has 1000 tokens, the context holds 240"),
        ({}, ["--trace", "/no/such/trace.json"], "/no/such/trace.json: cannot be written"),
        ({}, ["--dot", "graph.dot"], "--dot: does not go with --simulate"),
        ({}, ["--context", "5"], "--context: does not go with --simulate"),
    ],
)
def test_faults_of_the_command(
    capsys: pytest.CaptureFixture[str],
    bundle: Path,
    tmp_path: Path,
    keys: dict[str, Any],
    options: list[str],
    words: str,
) -> None:
    times = times_file(tmp_path, **keys)
    assert cli.main([str(bundle), "--simulate", times, *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and len(err.splitlines()) == 1


def test_a_trace_of_nothing(capsys: pytest.CaptureFixture[str], bundle: Path) -> None:
    assert cli.main([str(bundle), "--trace", "trace.json"]) == 2
    assert capsys.readouterr().err == "strata-inspect: --trace: needs --simulate\n"


def test_needs_no_torch(bundle: Path, tmp_path: Path) -> None:
    arguments = [str(bundle), "--simulate", times_file(tmp_path, max_tokens=5)]
    code = (
        "import sys; from strata_compile.debug.cli import main; "
        f"code = main({arguments!r}); sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
