"""YAML text to a tree of fields that know their line and path, and the typed readers of a field.

Works on PyYAML's node tree and constructs no Python object from a tag. What a plan never needs
and an attacker or a typing slip would use (tags, anchors, aliases, repeated keys, deep nesting,
several documents) is refused here.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

import yaml

from strata_compile.errors import PlanError

T = TypeVar("T", bound=str)
Kind = Literal["text", "number", "truth value", "date", "nothing", "list", "mapping"]

_DEPTH_LIMIT = 8  # a plan needs four; also keeps every recursion below short
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
# Controls, line ends and lone surrogates: they cannot be part of a one-line message or a path.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_KINDS: dict[str, Kind] = {
    "int": "number",
    "float": "number",
    "bool": "truth value",
    "timestamp": "date",
    "null": "nothing",
}


@dataclass(frozen=True)
class Field:
    """One value of the plan's file: what it is, its path such as `prompt.sizes[0]`, its line."""

    source: Path
    path: str
    line: int
    kind: Kind
    value: "str | tuple[Field, ...] | dict[str, Field]"

    def error(self, message: str) -> PlanError:
        """Return an error at this field."""
        return PlanError(self.source, self.line, self.path, message)

    def wrong(self, wanted: str) -> PlanError:
        """Return an error that says what the field must be and what was found."""
        return self.error(f"must be {wanted}, found {self._found()}")

    def _found(self) -> str:
        if not isinstance(self.value, str):
            return f"a {self.kind}"
        if self.kind == "nothing":
            return "nothing"
        advice = " (quote it if it is text)" if self.kind in ("truth value", "date") else ""
        return f"the {self.kind} {shorten(self.value)}{advice}"


def shorten(text: str) -> str:
    """Return text quoted, on one line and short enough for a message."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return "; did you mean 'slots'?" for a slip of the pen, else an empty string."""
    folded = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name[:64].lower(), list(folded), n=1)
    return f"; did you mean '{folded[close[0]]}'?" if close else ""


def read_text(field: Field) -> str:
    """Return a text that is not empty and has no control characters."""
    if field.kind != "text" or not isinstance(field.value, str):
        raise field.wrong("a text")
    if not field.value.strip():
        raise field.error("must not be empty")
    if _UNPRINTABLE.search(field.value):
        raise field.error(f"must not have control characters, found {shorten(field.value)}")
    return field.value


def read_int(field: Field, low: int, high: int) -> int:
    """Return a whole number in low..high, both included; YAML's octal, 1:30 and 1_000 are not."""
    text = field.value
    if field.kind != "number" or not isinstance(text, str) or not _INT.fullmatch(text):
        raise field.wrong("a whole number in plain decimal")
    # Python refuses to convert thousands of digits, and none of our limits has more than 18.
    if len(text) > 19 or not low <= int(text) <= high:
        raise field.wrong(f"between {low} and {high}")
    return int(text)


def read_number(field: Field) -> float:
    """Return a finite number."""
    text = field.value
    if field.kind != "number" or not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise field.wrong("a finite number in plain decimal")
    if not math.isfinite(float(text)):
        raise field.wrong("a finite number")
    return float(text)


def read_positive(field: Field) -> float:
    """Return a finite number greater than zero."""
    value = read_number(field)
    if value <= 0:
        raise field.wrong("a finite number greater than 0")
    return value


def read_choice(field: Field, known: Sequence[T]) -> T:
    """Return one of the known words."""
    listed = ", ".join(known)
    if field.kind != "text":
        raise field.wrong(f"one of {listed}")
    text = read_text(field)
    for word in known:
        if word == text:
            return word
    raise field.error(f"{shorten(text)} is not one of {listed}{nearest(text, known)}")


def read_list(field: Field) -> tuple[Field, ...]:
    """Return the entries of a list that is not empty."""
    if not isinstance(field.value, tuple):
        raise field.wrong("a list")
    if not field.value:
        raise field.error("must not be empty")
    return field.value


def read_mapping(field: Field, known: Sequence[str]) -> Mapping[str, Field]:
    """Return the entries of a mapping, which may use the known keys only."""
    if not isinstance(field.value, dict):
        raise field.wrong(f"a mapping with the keys {', '.join(known)}")
    for key, entry in field.value.items():
        if key not in known:
            advice = nearest(key, known) or f"; known: {', '.join(known)}"
            raise entry.error(f"unknown key{advice}")
    return field.value


def field_lines(root: Field) -> dict[str, int]:
    """Return the line of every field path in the tree; the whole plan's path is empty."""
    return {field.path: field.line for field in _walk(root)}


def parse_fields(text: str, source: Path) -> Field:
    """Return the one YAML document in text as a tree of fields; PlanError for anything else."""
    node = _compose(text, source)
    if node is None:
        raise PlanError(source, 1, "", "the plan is empty; it needs at least 'model: FILE'")
    return _field(source, node, "", node.start_mark.line + 1)


def _walk(field: Field) -> Iterator[Field]:
    yield field
    entries = field.value.values() if isinstance(field.value, dict) else field.value
    if not isinstance(entries, str):
        for entry in entries:
            yield from _walk(entry)


def _field(source: Path, node: yaml.Node, path: str, line: int) -> Field:
    if isinstance(node, yaml.MappingNode):
        return Field(source, path, line, "mapping", _mapping(source, node, path))
    if isinstance(node, yaml.SequenceNode):
        entries = (
            _field(source, entry, _join(path, index), entry.start_mark.line + 1)
            for index, entry in enumerate(node.value)
        )
        return Field(source, path, line, "list", tuple(entries))
    return Field(source, path, line, _scalar_kind(node), node.value)


def _mapping(source: Path, node: yaml.MappingNode, path: str) -> dict[str, Field]:
    entries: dict[str, Field] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1  # the line where the field's name stands
        key = _field(source, key_node, path, line)
        if key.kind != "text" or not isinstance(key.value, str):
            raise key.error(f"a key must be a text, found {key._found()}")
        entry = _field(source, value_node, _join(path, key.value), line)
        if key.value in entries:
            first = entries[key.value].line
            raise entry.error(f"the key appears twice, first on line {first}")
        entries[key.value] = entry
    return entries


def _scalar_kind(node: yaml.Node) -> Kind:
    """YAML 1.1 takes a plain 1e3 for text; everybody else for a number."""
    if isinstance(node, yaml.ScalarNode) and not node.style and _NUMBER.fullmatch(node.value):
        return "number"
    return _KINDS.get(node.tag.rpartition(":")[2], "text")


def _join(path: str, step: str | int) -> str:
    if isinstance(step, int):
        return f"{path}[{step}]"
    name = step if _PLAIN_KEY.fullmatch(step) else shorten(step)
    return f"{path}.{name}" if path else name


class _Composer(yaml.SafeLoader):
    """PyYAML's node composer, which follows the field path and refuses what no plan needs."""

    def __init__(self, text: str, source: Path) -> None:
        super().__init__(text)
        self._source = source
        self._path = ""
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Compose the next node; `index` is a list's index, a key's node, or None for a key."""
        outer = self._path
        self._depth += 1
        if isinstance(index, int):
            self._path = _join(outer, index)
        elif isinstance(index, yaml.ScalarNode):
            self._path = _join(outer, index.value)
        self._refuse(self.next_event())
        node = super().compose_node(parent, cast(int, index))
        self._path = outer
        self._depth -= 1
        return node

    def next_event(self) -> yaml.Event:
        """Return the event that will be composed next."""
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        return event

    def _refuse(self, event: yaml.Event) -> None:
        anchor: str | None = getattr(event, "anchor", None)  # an alias has the name there too
        tag: str | None = getattr(event, "tag", None)
        if anchor is not None:
            message = f"anchors and aliases are not part of a plan, found {shorten(anchor)}"
        elif tag is not None:
            message = f"unknown tag {shorten(tag)}: a plan has no YAML tags"
        elif self._depth > _DEPTH_LIMIT:
            message = "is nested too deeply for a plan"
        else:
            return
        raise PlanError(self._source, _event_line(event), self._path, message)


def _event_line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _compose(text: str, source: Path) -> yaml.Node | None:
    """Return the document's root, None where there is none."""
    try:
        loader = _Composer(text, source)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not a text file: character {error.character:#x} is not allowed"
        raise PlanError(source, line, "", message) from None
    try:
        node = loader.get_node() if loader.check_node() else None
        if loader.check_node():
            line = _event_line(loader.next_event())
            raise PlanError(source, line, "", "a plan is one YAML document, found another one")
        return node
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, source, last_line=len(text.splitlines())) from None
    except (ValueError, OverflowError):
        # PyYAML converts \U escapes and %YAML versions without checking their range.
        line = loader.get_mark().line + 1
        raise PlanError(source, line, "", "not valid YAML: a number is out of range") from None
    finally:
        loader.dispose()


def _syntax_error(error: yaml.MarkedYAMLError, source: Path, *, last_line: int) -> PlanError:
    """PyYAML's report on one line; at the end of the file it points past the last line."""
    mark = error.problem_mark or error.context_mark
    line = None if mark is None else min(mark.line + 1, last_line)
    begun = ""
    if error.context and error.context_mark and error.context_mark.line + 1 != line:
        begun = f" ({error.context} that begins on line {error.context_mark.line + 1})"
    return PlanError(source, line, "", f"not valid YAML: {(error.problem or '')[:120]}{begun}")
