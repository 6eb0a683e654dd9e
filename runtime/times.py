"""What launches cost on the simulated device, as a file says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from strata_runtime.errors import OptionError

#: Kinds of programs that a file of times may name; exec must be there.
KINDS = ("exec", "commit", "commit_row", "draft", "prompt", "copy")

_COUNTS = ("streams", "prompt_tokens", "max_tokens")
#: `texts` is what strata-bench --record writes beside the times.
_KEYS = frozenset({*KINDS, *_COUNTS, "stages", "acceptance", "host_ms", "texts"})


@dataclass(frozen=True)
class Curve:
    """Milliseconds by rows: at least one (rows, ms), rows ascending."""

    points: tuple[tuple[int, float], ...]

    def at(self, rows: int) -> float:
        """As given, else on the line through the two nearest points; never below 0.

        Beyond the ends the outermost line goes on. One point alone holds for every count.
        """
        if len(self.points) == 1:
            return self.points[0][1]
        lines = pairwise(self.points)
        low, high = next(lines)
        while rows > high[0] and (line := next(lines, None)):
            low, high = line
        (x0, y0), (x1, y1) = low, high
        return max(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


Curves = Mapping[str, Curve]


@dataclass(frozen=True)
class Times:
    """Curves by kind; `stages`, where given, has each stage's own, which come first.

    A draft is right with probability `acceptance`, by its index behind the real token; the last
    one holds for all that follow. `host_ms` pass between a completion and what is queued for it.
    `streams` (None: as many as slots) each have a prompt of `prompt_tokens` and `max_tokens`.
    """

    curves: Curves
    stages: tuple[Curves, ...] = ()
    acceptance: tuple[float, ...] = (0.0,)
    host_ms: float = 0.0
    streams: int | None = None
    prompt_tokens: int = 1
    max_tokens: int = 512

    def ms(self, stage: int, kind: str, rows: int) -> float:
        """Milliseconds of a program; `rows` is the number in its name. 0 where none are given."""
        own: Curves = self.stages[stage] if self.stages else {}
        curve = own.get(kind) or self.curves.get(kind)
        return curve.at(rows) if curve else 0.0


def read_times(path: Path) -> Times:
    """Times from a JSON file; OptionError names the key that is at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise OptionError(f"{path}: cannot be read: {reason}") from error
    try:
        return parse_times(text)
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None


def parse_times(text: str) -> Times:
    """Times from JSON text; OptionError names the key that is at fault."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"not JSON: {error}") from error
    items = _object(value, "the file")
    _check_keys(items, _KEYS, "")
    curves = _curves(items, "")
    stages = tuple(_stage(s, f"stages.{i}") for i, s in enumerate(_list(items, "stages")))
    if "exec" not in curves and not (stages and all("exec" in s for s in stages)):
        raise OptionError("exec is missing")
    counts: dict[str, Any] = {key: _count(items[key], key) for key in _COUNTS if key in items}
    if "acceptance" in items:
        counts["acceptance"] = _acceptance(items["acceptance"])
    return Times(curves, stages, host_ms=_ms(items.get("host_ms", 0), "host_ms"), **counts)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"{twice} is there twice")
    return found


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"{where} is {_shown(value)}, expected an object")
    return value


def _list(items: Mapping[str, Any], key: str) -> list[Any]:
    value = items.get(key, [])
    if not isinstance(value, list):
        raise OptionError(f"{key} is {_shown(value)}, expected a list")
    return value


def _check_keys(items: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    if unknown := [key for key in items if key not in known]:
        raise OptionError(f"{where}{unknown[0]} is unknown; known are {', '.join(sorted(known))}")


def _stage(value: object, where: str) -> Curves:
    items = _object(value, where)
    _check_keys(items, frozenset(KINDS), f"{where}.")
    return _curves(items, f"{where}.")


def _curves(items: Mapping[str, Any], where: str) -> dict[str, Curve]:
    return {kind: _curve(items[kind], where + kind) for kind in KINDS if kind in items}


def _curve(value: object, where: str) -> Curve:
    points = _object(value, where)
    if not points:
        raise OptionError(f"{where} is empty, expected milliseconds by rows")
    return Curve(
        tuple(sorted((_rows(k, where), _ms(v, f"{where}.{k}")) for k, v in points.items()))
    )


def _rows(key: str, where: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 10 and str(int(key)) == key):
        raise OptionError(f"{where}.{key} is no number of rows")
    return int(key)


def _number(value: object, where: str) -> float:
    """JSON as Python reads it also has true, NaN, and numbers that are too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"{where} is {_shown(value)}, expected a number")
    if not abs(value) < 1e12:
        raise OptionError(f"{where} is out of range")
    return float(value)


def _ms(value: object, where: str) -> float:
    number = _number(value, where)
    if number < 0:
        raise OptionError(f"{where} is {number:g}, which is negative")
    return number


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise OptionError(f"{where} is {_shown(value)}, expected a whole number of at least 1")
    return value


def _acceptance(value: object) -> tuple[float, ...]:
    if value == []:
        raise OptionError("acceptance is empty, expected probabilities")
    items = value if isinstance(value, list) else [value]
    names = [
        f"acceptance.{i}" if isinstance(value, list) else "acceptance" for i in range(len(items))
    ]
    found = tuple(_number(item, name) for item, name in zip(items, names, strict=True))
    for probability, name in zip(found, names, strict=True):
        if not 0 <= probability <= 1:
            raise OptionError(f"{name} is {probability:g}, expected a probability from 0 to 1")
    return found


def _shown(value: object) -> str:
    """A value as the file has it, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
