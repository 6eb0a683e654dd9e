"""What users can type wrong, or point an output at: one line, exit code 2, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_maker import write_tiny_llama
from replayer import compile_bundle

COMMAND = [sys.executable, "-c", "from strata_runtime.cli import main; exit(main())"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle with a vocabulary."""
    folder = tmp_path_factory.mktemp("bundle")
    model = write_tiny_llama(folder / "tiny.gguf", with_vocab=True)
    return compile_bundle(folder, model, context=64).folder


def run(bundle: Path, *words: str, **keys: object) -> subprocess.CompletedProcess[bytes]:
    """strata-run in a process of its own."""
    command = [*COMMAND, str(bundle), *words]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, **keys)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    "words",
    [
        ("--threads", "99999999999"),
        ("--threads", "1025"),
        ("--temperature", "1e39"),
        ("--repeat-penalty", "1e-50"),
        ("--presence-penalty", "1e39"),
        ("--penalty-last", "-5"),
        ("--seed", "-1"),
        ("--max-tokens", "0"),
        ("--stop", "x", "--prompt-ids", "1"),
    ],
    ids=" ".join,
)
def test_values_that_cannot_be(bundle: Path, words: tuple[str, ...]) -> None:
    """One line that names the value."""
    done = run(bundle, "--prompt", "hello", *words, stdout=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr.startswith(b"strata-run: ") and done.stderr.count(b"\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_output_that_is_full(bundle: Path, form: tuple[str, ...]) -> None:
    """Neither the text nor the JSON object can be written."""
    with open("/dev/full", "w") as full:
        done = run(bundle, "--prompt", "hello", "--max-tokens", "2", *form, stdout=full)
    assert done.returncode == 2
    assert done.stderr.endswith(b"cannot be written: No space left on device\n")
    assert done.stderr.count(b"\n") == 1


def test_an_output_that_lacks_letters(bundle: Path) -> None:
    """A terminal of ASCII gets question marks, and no traceback."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = ("--prompt", "hello", "--max-tokens", "12", "--temperature", "2")
    done = run(bundle, *words, stdout=subprocess.PIPE, env=environment)
    assert done.returncode == 0 and done.stdout.isascii()
