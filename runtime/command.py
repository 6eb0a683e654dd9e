"""What every command does alike: arguments, one-line errors, exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from strata_runtime.errors import StrataError

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
        # Python flushes standard output once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def positive_int(text: str) -> int:
    """An argument that counts something: 1 or more."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value
