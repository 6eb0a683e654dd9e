"""strata-bench on a tiny bundle: settings side by side, identity, replayed drafts, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_maker import write_tiny_llama, write_tiny_nextn
from replayer import compile_bundle
from strata_runtime.bench_cli import main
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.options import VARIABLES
from strata_runtime.times import parse_times

Capture = pytest.CaptureFixture[str]
CONTEXT = 128


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No STRATA_* variable reaches the command."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama without a vocabulary."""
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, three slots, two groups, look-up drafts of depth 3."""
    keys = {"stages": 2, "slots": 3, "groups": 2, "context": CONTEXT}
    folder = tmp_path_factory.mktemp("bundle")
    return compile_bundle(folder, model, **keys, draft="{kind: ngram, depth: 3}").folder


@pytest.fixture(scope="module")
def undrafted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One stage, one slot, nothing that drafts."""
    folder = tmp_path_factory.mktemp("undrafted")
    return compile_bundle(folder, model, context=CONTEXT).folder


def bench(capsys: Capture, bundle: Path, *words: object, code: int = 0) -> dict[str, Any]:
    """The command's JSON object; nothing may come on standard error."""
    options = ("--max-tokens", 24, "--repeats", 1, "--threads", 1, "--json")
    assert main([str(w) for w in (bundle, *options, *words)]) == code
    out, err = capsys.readouterr()
    assert code or not err
    found: dict[str, Any] = json.loads(out)
    return found


def test_settings_side_by_side(capsys: Capture, bundle: Path) -> None:
    """A run for each setting; every text is that of the stream alone."""
    found = bench(
        capsys,
        bundle,
        *("--streams", 3, "--drafts", "0,1,3,auto", "--groups", "1,2", "--check-identity"),
        *("--repeats", 2, "--temperature", "0.5", "--seed", 7),
    )
    assert (found["streams"], found["max_tokens"], found["device"]) == (3, 24, "cpu")
    assert [(r["groups"], r["drafts"]) for r in found["runs"]] == [
        (groups, drafts) for groups in (1, 2) for drafts in (0, 1, 3, "auto")
    ]
    for run in found["runs"]:
        most = 3 if run["drafts"] == "auto" else run["drafts"]
        assert run["identical"] is True
        assert len(run["per_stream"]) == 3 and min(run["per_stream"]) > 0
        assert len(run["tokens_per_s_each"]) == 2 and run["tokens_per_s"] > 0
        assert len(run["drafted_by_position"]) <= most
        assert sum(run["accepted_by_position"]) == run["accepted"] <= run["drafted"]
        assert run["tokens_per_segment"] == round(72 / (72 - run["accepted"]), 3)
        assert run["tokens_per_window"] >= run["tokens_per_segment"]
        assert len(run["stage_busy"]) == 2 and all(0 < busy < 1 for busy in run["stage_busy"])
        assert run["longest_gap_ms"] > 0
        assert {"0.exec.r1", "1.exec.r1", "1.prompt.r32"} <= run["program_ms"].keys()
        assert "1" in run["window_ms"]


@pytest.mark.parametrize("spec", ["1", "0", "1101", "0.5"])
def test_replayed_drafts(capsys: Capture, bundle: Path, spec: str) -> None:
    """Drafts hold as often as was asked for."""
    found = bench(capsys, bundle, "--streams", 2, "--drafts", 3, "--replay", spec)
    (run,) = found["runs"]
    assert run["identical"] is None and run["drafted"] > 0
    if spec == "1":
        assert run["accepted"] == run["drafted"] == 48 - 2 * 6
    elif spec == "0":
        assert run["accepted"] == 0 and run["tokens_per_segment"] == 1
    else:
        assert 0 < run["accepted"] < run["drafted"]


def test_a_layer_that_drafts(capsys: Capture, model: Path, tmp_path: Path) -> None:
    """An MTP layer's drafts change nothing either; it does not replay."""
    layer = write_tiny_nextn(tmp_path / "layer.gguf")
    draft = f"{{kind: mtp, model: {layer}, depth: 2}}"
    folder = compile_bundle(tmp_path, model, slots=2, context=CONTEXT, draft=draft).folder
    found = bench(capsys, folder, "--check-identity")
    assert [(r["drafts"], r["identical"]) for r in found["runs"]] == [(0, True), ("auto", True)]
    assert found["runs"][0]["drafted"] == 0 < found["runs"][1]["drafted"]
    assert "0.draft.r2" in found["runs"][1]["program_ms"]
    fault(capsys, folder, "--replay", "1")


def test_a_prompt_beside(capsys: Capture, bundle: Path) -> None:
    """It is read while the streams decode, and changes none of them."""
    found = bench(capsys, bundle, "--prompt-beside", 100, "--drafts", 0, "--check-identity")
    (run,) = found["runs"]
    assert found["streams"] == 2 and run["identical"] is True
    assert run["prompt_tokens_per_s"] > 0
    assert 0 < run["longest_gap_beside_ms"] <= run["longest_gap_ms"]


def test_recorded(capsys: Capture, bundle: Path, tmp_path: Path) -> None:
    """Times that the clock reads, and the texts."""
    file = tmp_path / "times.json"
    bench(capsys, bundle, "--streams", 2, "--drafts", 3, "--replay", "1101", "--record", file)
    value = json.loads(file.read_text())
    texts = value.pop("texts")
    assert [len(text["tokens"]) for text in texts] == [24, 24]
    assert all(len(text["logits_hash"]) == 16 and text["prompt"] for text in texts)
    times = parse_times(json.dumps(value))
    assert times.streams == 2 and times.ms(1, "exec", 1) > 0 and 0 < times.acceptance[0] <= 1


def test_prompts_from_files(capsys: Capture, tmp_path: Path, bundle: Path) -> None:
    """Token ids, texts, and lines."""
    model = write_tiny_llama(tmp_path / "words.gguf", with_vocab=True)
    folder = compile_bundle(tmp_path, model, slots=2, context=CONTEXT).folder
    lines, items, record = (tmp_path / n for n in ("a.txt", "b.json", "c.json"))
    lines.write_text("hello\n\nthe thing\n")
    items.write_text('["hello", [5, 6, 7]]')

    def prompts(folder: Path, *words: object) -> list[list[int]]:
        bench(capsys, folder, *words, "--drafts", 0, "--record", record)
        return [text["prompt"] for text in json.loads(record.read_text())["texts"]]

    hello, thing = prompts(folder, "--prompts", lines)
    assert len(hello) > 5 and len(thing) > len(hello)  # the chat template is around them
    assert prompts(folder, "--prompts", items) == [hello, [5, 6, 7]]
    items.write_text("[[5, 6, 7], [8]]")
    assert prompts(bundle, "--prompts", items) == [[5, 6, 7], [8], [5, 6, 7]]
    fault(capsys, bundle, "--prompts", lines)


def test_the_table(capsys: Capture, bundle: Path) -> None:
    """A line for each setting, and one on what was chosen."""
    words = (str(bundle), "--max-tokens", "8", "--repeats", "1", "--drafts", "0,3")
    assert main([*words, "--check-identity"]) == 0
    out, err = capsys.readouterr()
    assert not err and "tokens/s" in out and out.count(" yes") == 2
    assert "\ndrafts 0, groups auto: " in out and "\ndrafts 3, groups auto: " in out


Words = npt.NDArray[np.int32]


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[Words], None]) -> None:
    """Change the verdict words of windows of two segments: those alone have one."""
    whole = CpuDevice.verdict
    monkeypatch.setattr(CpuDevice, "verdict", lambda self, context: told(whole(self, context)))

    def told(words: Words) -> Words:
        if words[1, 1] or words[1, 2:].any():
            change(words)
        return words


def other_tokens(words: Words) -> None:
    words[1, 1] = (words[1, 1] + 1) % 133


def other_hashes(words: Words) -> None:
    words[1, 2] ^= 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_tokens, "token "),
        (other_hashes, "logits hash differs, tokens equal, logits differ from token "),
    ],
)
def test_a_text_that_differs(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    bundle: Path,
    change: Callable[[Words], None],
    why: str,
) -> None:
    """One line that names setting, stream and token, and exit code 1."""
    spoil(monkeypatch, change)
    options = ("--streams", "2", "--groups", "1", "--drafts", "0", "--max-tokens", "8")
    words = (str(bundle), *options, "--repeats", "1", "--check-identity", "--json")
    assert main(list(words)) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"][0]["identical"] is False
    start = f"strata-bench: drafts 0, groups 1: stream 1: {why}"
    assert err.startswith(start) and err[len(start)].isdecimal() and err.count("\n") == 1


def fault(capsys: Capture, *words: object) -> str:
    """The one line of a refusal."""
    assert main([str(w) for w in words]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("strata-bench: ") and err.count("\n") == 1
    return err.removeprefix("strata-bench: ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--streams 4", "--streams: 4 is more than 3, the bundle's slots"),
        ("--drafts 0,4", "--drafts: 4 is more than 3, the bundle's draft depth"),
        ("--groups 3", "--groups: 3 is more than 2, the bundle's groups"),
        ("--slots-per-window 4", "--slots-per-window: 4 is more than 3, the bundle's most"),
        (
            "--max-tokens 106",
            "--max-tokens: 106 is more than 105, what the context of 128 holds behind the prompt "
            "of stream 0",
        ),
        (
            "--prompt-beside 8 --streams 3",
            "--prompt-beside needs a free slot: the bundle has 3, and --streams 3 takes all",
        ),
        ("--prompt-beside 129", "--prompt-beside: 129 is more than 128, the bundle's context"),
        (
            "--replay 2",
            "--replay: '2' is neither a probability from 0 to 1 nor a pattern as 1101",
        ),
        ("--temperature -1", "stream 0: temperature is -1.0, which is out of range"),
        ("--record /no/such/file", "--record /no/such/file: no file can be written there"),
        ("--prompts /no/such/file", "/no/such/file: cannot be read: No such file or directory"),
    ],
)
def test_faults(capsys: Capture, bundle: Path, words: str, line: str) -> None:
    assert fault(capsys, bundle, *words.split()) == f"{line}\n"


def test_faults_of_a_bundle_that_does_not_draft(capsys: Capture, undrafted: Path) -> None:
    line = (
        "--replay: the bundle has no room for drafts; compile with draft: {kind: ngram, depth: N}"
    )
    assert fault(capsys, undrafted, "--replay", "1") == f"{line}\n"
    assert "bundle's draft depth" in fault(capsys, undrafted, "--drafts", "1")
    assert "needs a free slot" in fault(capsys, undrafted, "--prompt-beside", "8")
    assert [run["drafts"] for run in bench(capsys, undrafted)["runs"]] == [0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{}", "not a JSON list of prompts"),
        ("[", "not JSON: Expecting value: line 1 column 2 (char 1) (prompts one a line go in a"),
        ("[]", "holds no prompts"),
        ("[[1], [true]]", "prompt 1 is neither a text nor a list of token ids"),
        ("[[]]", "prompt 0 is empty"),
        ('["text"]', "prompt 0: the model file has no vocabulary: give token ids"),
    ],
)
def test_faults_of_prompt_files(
    capsys: Capture, bundle: Path, tmp_path: Path, text: str, line: str
) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(text)
    said = fault(capsys, bundle, "--prompts", file)
    assert said.startswith(f"{file}") and line in said


def test_a_token_that_is_not_in_the_vocabulary(
    capsys: Capture, bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.json"
    file.write_text("[[1], [999]]")
    assert "stream 1: prompt token 999" in fault(capsys, bundle, "--prompts", file)


@pytest.mark.parametrize("words", ["--drafts 0,x", "--drafts -1", "--groups 0", "--streams 0"])
def test_words_that_cannot_be(capsys: Capture, bundle: Path, words: str) -> None:
    """The parser's line."""
    with pytest.raises(SystemExit) as ended:
        main([str(bundle), *words.split()])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
