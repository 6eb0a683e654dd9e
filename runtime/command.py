"""What every command does alike: arguments, one-line errors, exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from strata_runtime.errors import OptionError, StrataError

#: Exit codes: bad input, and a user's interrupt.
BAD_INPUT, INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, as all errors are."""

    def error(self, message: str) -> NoReturn:
        """End the command."""
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def run_command(name: str, body: Callable[[], int]) -> int:
    """Run a command's body: its exit code, or one line on standard error and 2 for bad input.

    A reader that went away (`| head`) and an interrupt end it quietly.
    """
    try:
        return body()
    except StrataError as error:
        message = "".join(c if c.isprintable() else "?" for c in str(error))
        sys.stderr.write(f"{name}: {message}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return 0


def write_out(text: str) -> None:
    """Write to standard output at once, with question marks for what its encoding lacks.

    OptionError where it cannot be written; BrokenPipeError where its reader has gone.
    """
    if sys.stdout is None:
        raise OptionError("standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_stdout()
        raise OptionError(f"standard output cannot be written: {error.strerror}") from error


def _discard_stdout() -> None:
    """Python flushes standard output once more at exit: give it somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def thread_count(text: str) -> int:
    """An argument that says how many threads: 1 to 1024."""
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1024")
    return int(text)


def positive_int(text: str) -> int:
    """An argument that counts something: 1 or more."""
    value = int(text) if text.isdecimal() and len(text) < 10 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value
