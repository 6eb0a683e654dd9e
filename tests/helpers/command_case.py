"""strata-compile in this process, and what a user sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from strata_compile.cli import NAME, main


@dataclass(frozen=True)
class Seen:
    """An exit code and standard error."""

    code: int
    err: str

    def fault(self) -> str:
        """The one printable line of a refusal, without the command's name."""
        assert self.code == 2, self.err
        assert self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        assert self.err[:-1].isprintable(), self.err
        assert self.err.startswith(f"{NAME}: "), self.err
        return self.err[len(NAME) + 2 : -1]

    def success(self, bundle: Path) -> None:
        """One line that names the bundle."""
        assert (self.code, self.err.count("\n")) == (0, 1), self.err
        assert self.err.startswith(f"{bundle}: compiled in ") and self.err.endswith(" s\n")


def compile_seen(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Seen:
    """The command with these arguments; nothing may come on standard output."""
    capsys.readouterr()
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    return Seen(code, err)
