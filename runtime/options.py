"""Every STRATA_* variable, in one place; an unknown or unusable one is an error."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_runtime.errors import OptionError

#: Name and meaning; the README's table is tested against this one.
VARIABLES = {
    "STRATA_CACHE": "folder for models and compiled kernels (default ~/.cache/strata-compile)",
    "STRATA_DUMP": "folder for the compiler's dumps, as --dump",
    "STRATA_NO_COMPILE": "1: a kernel that is not in the cache is an error (default 0)",
    "STRATA_THREADS": "threads of a stage of the CPU device (default: cores but one, shared out)",
}


@dataclass(frozen=True)
class Environment:
    """The variables' values."""

    cache: Path
    dump: Path | None
    threads: int | None
    no_compile: bool


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """The STRATA_* variables of a process; OptionError for one that is unknown or unusable."""
    env = os.environ if environ is None else environ
    for name in env:
        if name.startswith("STRATA_") and name not in VARIABLES:
            close = difflib.get_close_matches(name, VARIABLES, 1) or list(VARIABLES)
            raise OptionError(f"{name}: unknown variable; did you mean {', '.join(close)}?")
    cache = Path(env.get("STRATA_CACHE") or Path.home() / ".cache" / "strata-compile")
    dump = Path(env["STRATA_DUMP"]) if env.get("STRATA_DUMP") else None
    no_compile = _switch("STRATA_NO_COMPILE", env.get("STRATA_NO_COMPILE"))
    return Environment(cache, dump, _threads(env.get("STRATA_THREADS")), no_compile)


def _switch(name: str, text: str | None) -> bool:
    if text not in (None, "", "0", "1"):
        raise OptionError(f"{name}: {text!r} is not 0 or 1")
    return text == "1"


def _threads(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1024:
        raise OptionError(f"STRATA_THREADS: {text!r} is not a number from 1 to 1024")
    return int(text)
