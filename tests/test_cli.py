"""strata-compile as a user runs it: exit codes, one line for a fault, what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_case import compile_seen
from compile_case import contents, write_case
from strata_compile import __version__
from strata_compile.cli import main
from strata_compile.pipeline import PASSES
from strata_runtime.bundle_load import load_bundle
from strata_runtime.options import VARIABLES

Capture = pytest.CaptureFixture[str]
LINES = "stages: 2\nprompt: {sizes: [8]}\n"
COMMAND = [sys.executable, "-m", "strata_compile"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No STRATA_* variable but those that a test sets."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_case(tmp_path, LINES)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tmp_path / "bundle"


def test_compiles(capsys: Capture, plan: Path, bundle: Path) -> None:
    compile_seen(capsys, plan, "-o", bundle).success(bundle)
    assert len(load_bundle(bundle).programs) == 2 * 10
    assert not (bundle / "model.gguf").exists()


def test_embedded_weights(capsys: Capture, plan: Path, bundle: Path) -> None:
    compile_seen(capsys, plan, "--output", bundle, "--embed-weights").success(bundle)
    assert (bundle / "model.gguf").read_bytes() == (plan.parent / "tiny.gguf").read_bytes()


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_as_a_command(plan: Path, bundle: Path) -> None:
    done = run(plan, "-o", bundle)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{bundle}: compiled in ") and done.stderr.count("\n") == 1
    plan.write_text("model: tiny.gguf\nslots: many\n")
    done = run(plan, "-o", bundle)
    assert (done.returncode, done.stdout) == (2, "")
    line = f"{plan}:2: slots: must be a whole number in plain decimal, found the text 'many'"
    assert done.stderr == f"strata-compile: {line}\n"


def test_the_script_is_the_module(plan: Path, bundle: Path) -> None:
    script = Path(sys.executable).with_name("strata-compile")
    if not script.exists():
        pytest.skip("the package's scripts are not installed beside python")
    done = subprocess.run([script, plan, "-o", bundle], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)


def replaced(plan: Path, lines: str) -> None:
    plan.write_text(f"model: tiny.gguf\n{lines}")


def test_broken_plan(capsys: Capture, plan: Path, bundle: Path) -> None:
    replaced(plan, "stages: 9\n")
    fault = compile_seen(capsys, plan, "-o", bundle).fault()
    assert fault == f"{plan}:2: stages: 9 stages need as many layers, the model has 2"
    assert not bundle.exists()


def test_missing_files(capsys: Capture, plan: Path, bundle: Path, tmp_path: Path) -> None:
    fault = compile_seen(capsys, tmp_path / "none.yaml", "-o", bundle).fault()
    assert fault == f"{tmp_path}/none.yaml: no such file"
    (tmp_path / "tiny.gguf").unlink()
    fault = compile_seen(capsys, plan, "-o", bundle).fault()
    assert fault == f"{tmp_path}/tiny.gguf: cannot be read: No such file or directory"
    assert not bundle.exists()


def test_missing_package(
    capsys: Capture, plan: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_CACHE", str(plan.parent / "cache"))
    plan.write_text("model: package:no_such_package/x.gguf\n")
    fault = compile_seen(capsys, plan, "-o", bundle).fault()
    assert "package:no_such_package/x.gguf" in fault and str(plan.parent / "cache") in fault


def test_package_from_the_cache(
    capsys: Capture, plan: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = plan.parent / "cache" / "models" / "no_such_package"
    folder.mkdir(parents=True)
    (plan.parent / "tiny.gguf").rename(folder / "x.gguf")
    monkeypatch.setenv("STRATA_CACHE", str(plan.parent / "cache"))
    plan.write_text(f"model: package:no_such_package/x.gguf\n{LINES}")
    compile_seen(capsys, plan, "-o", bundle).success(bundle)


def test_broken_model(capsys: Capture, plan: Path, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGML" + bytes(100))
    fault = compile_seen(capsys, plan, "-o", bundle).fault()
    assert fault.startswith(f"{tmp_path}/tiny.gguf: not a GGUF file") and not bundle.exists()


def test_memory_budget(capsys: Capture, plan: Path, bundle: Path) -> None:
    replaced(plan, "stages:\n - {layers: 0}\n - {layers: 1, device: cuda:3, memory: 10KiB}\n")
    fault = compile_seen(capsys, plan, "-o", bundle).fault()
    assert "stage 1 (layers 1-1" in fault and "MiB short" in fault
    assert not bundle.exists()


def test_memory_budget_names_the_device(capsys: Capture, plan: Path, bundle: Path) -> None:
    replaced(plan, "stages: [{layers: 0-1, device: cuda:3, memory: 10KiB}]\n")
    assert "cuda:3" in compile_seen(capsys, plan, "-o", bundle).fault()


def test_output_that_is_a_file_or_something_else(capsys: Capture, plan: Path, bundle: Path) -> None:
    bundle.write_text("precious")
    assert "is a file" in compile_seen(capsys, plan, "-o", bundle).fault()
    assert "cannot be written" in compile_seen(capsys, plan, "-o", bundle / "x").fault()
    assert "something else" in compile_seen(capsys, plan, "-o", plan.parent).fault()
    assert bundle.read_text() == "precious"


def test_output_whose_name_is_too_long(capsys: Capture, plan: Path) -> None:
    fault = compile_seen(capsys, plan, "-o", plan.parent / ("b" * 300)).fault()
    assert "name too long" in fault.lower()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STRATA_CASHE", "x", "STRATA_CASHE: unknown variable; did you mean STRATA_CACHE"),
        ("STRATA_THREADS", "many", "STRATA_THREADS: 'many' is not a number from 1 to 1024"),
        ("STRATA_THREADS", "9" * 5000, "STRATA_THREADS: "),
    ],
)
def test_variables_that_cannot_be(
    capsys: Capture,
    plan: Path,
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    words: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert words in compile_seen(capsys, plan, "-o", bundle).fault()
    assert not bundle.exists()


@pytest.mark.parametrize("until", PASSES)
def test_until(capsys: Capture, plan: Path, bundle: Path, until: str) -> None:
    seen = compile_seen(capsys, plan, "-o", bundle, "--until", until)
    assert seen.code == 0 and seen.err.count("\n") <= 1
    assert bundle.exists() == (until == PASSES[-1])


def test_until_does_not_need_what_comes_later(capsys: Capture, plan: Path, bundle: Path) -> None:
    (plan.parent / "tiny.gguf").unlink()
    assert compile_seen(capsys, plan, "-o", bundle, "--until", "plan").code == 0
    compile_seen(capsys, plan, "-o", bundle, "--until", "gguf").fault()


def test_dump(capsys: Capture, plan: Path, bundle: Path, tmp_path: Path) -> None:
    compile_seen(capsys, plan, "-o", bundle, "--dump", tmp_path / "a" / "b").success(bundle)
    found = contents(tmp_path / "a" / "b")
    assert {"30_model.txt", "30_model.dot", "50_stages.txt"} <= found.keys()


def test_dump_until(capsys: Capture, plan: Path, bundle: Path, tmp_path: Path) -> None:
    compile_seen(capsys, plan, "-o", bundle, "--dump", tmp_path / "dump", "--until", "stages")
    assert contents(tmp_path / "dump").keys() == {"30_model.txt", "30_model.dot", "50_stages.txt"}


def test_dump_by_variable_unless_given(
    capsys: Capture, plan: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_DUMP", str(tmp_path / "variable"))
    compile_seen(capsys, plan, "-o", bundle, "--dump", tmp_path / "given").success(bundle)
    assert not (tmp_path / "variable").exists() and contents(tmp_path / "given")
    compile_seen(capsys, plan, "-o", bundle).success(bundle)
    assert contents(tmp_path / "variable") == contents(tmp_path / "given")


@pytest.mark.parametrize("place", ["tiny.gguf", "tiny.gguf/inside", "d" * 300])
def test_dump_that_cannot_be_written(capsys: Capture, plan: Path, bundle: Path, place: str) -> None:
    folder = plan.parent / place
    fault = compile_seen(capsys, plan, "-o", bundle, "--dump", folder).fault()
    assert str(folder) in fault and not bundle.exists()


def test_bad_arguments(capsys: Capture, plan: Path, bundle: Path) -> None:
    for arguments in (
        [],
        [str(plan)],
        [str(plan), "-o", str(bundle), "--until", "nothing"],
        [str(plan), "-o", str(bundle), "--fast"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        assert caught.value.code == 2 and out == ""
        assert err.startswith("strata-compile: ") and err.count("\n") == 1
    assert not bundle.exists()


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"strata-compile {__version__}\n"


def test_help_lists_the_passes(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ", ".join(PASSES) in text and "--embed-weights" in text


def test_neither_the_command_nor_a_compile_imports_torch(plan: Path, bundle: Path) -> None:
    code = (
        "import sys; from strata_compile.cli import main; "
        "assert 'torch' not in sys.modules, 'at import'; "
        f"code = main([{str(plan)!r}, '-o', {str(bundle)!r}]); "
        "assert 'torch' not in sys.modules, 'while it compiled'; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.count("\n") == 1 and bundle.exists()


def test_an_interrupt_is_quiet_and_leaves_nothing(
    capsys: Capture, plan: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    seen = compile_seen(capsys, plan, "-o", bundle)
    assert (seen.code, seen.err) == (130, "\n")
    assert {p.name for p in plan.parent.iterdir()} == {"plan.yaml", "tiny.gguf"}
