"""Chat messages to token ids, through the jinja template that a GGUF file carries."""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata_runtime.errors import ModelError, RequestError
from strata_runtime.tokenizer import Tokenizer

_KEY = "tokenizer.chat_template"
_PROBE = ({"role": "user", "content": "Hello"},)
# A template may build a control token around a role, as "<|" + role + "|>": these may do so.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# Characters for private use, so that one of them is in no message (see encode_chat).
_GUARDS = range(0xF0000, 0xFFFFE)
# What an expression of a template can raise when a message is not what it expects.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _RefusedError(jinja2.TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """{% generation %}: marks what to train on; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A model's chat template; it may be absent, which only matters when a chat is rendered."""

    def __init__(
        self,
        source: str | None,
        texts: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`texts` are variables of the template (bos_token, ...); `now` is the clock it may read.

        Raises ModelError if the source is no template.
        """
        self.source = source
        self._texts = dict(texts)
        self._template = None if source is None else _compile(source, now)

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, object],
        tokenizer: Tokenizer,
        now: Callable[[], datetime] = datetime.now,
    ) -> "ChatTemplate":
        """The template of a GGUF file. Raises ModelError if it is damaged."""
        source = metadata.get(_KEY)
        if not isinstance(source, str | None):
            raise ModelError(f"{_KEY} is a {type(source).__name__}, not a string")
        named = tokenizer.named_texts
        texts = {"bos_token": named.get("bos", ""), "eos_token": named.get("eos", "")}
        return cls(source, texts, now)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[object] | None = None,
        **extra: object,
    ) -> str:
        """The text of a conversation, ready for the assistant's turn.

        Raises RequestError if there is no template or it refuses the messages, ModelError if the
        template is broken.
        """
        if self._template is None:
            raise RequestError("this model has no chat template: give the whole text with --prompt")
        for index, message in enumerate(messages):
            if not (isinstance(message, Mapping) and isinstance(message.get("role"), str)):
                raise RequestError(f"messages[{index}] has no role")
        given = {"messages": messages, "tools": tools}
        try:
            return self._template.render(
                {**self._texts, **extra, **given, "add_generation_prompt": add_generation_prompt}
            )
        except _RefusedError as error:
            raise RequestError(f"the chat template refuses: {_one_line(error)}") from error
        except _RENDER_ERRORS as error:
            if isinstance(error, SecurityError) or self._is_broken():
                raise ModelError(f"{_KEY} is broken: {_one_line(error)}") from error
            reason = _one_line(error)
            raise RequestError(f"the chat template cannot render this: {reason}") from error

    def _is_broken(self) -> bool:
        """Whether the template fails on the plainest conversation there is."""
        assert self._template is not None
        try:
            self._template.render(self._texts, messages=_PROBE, add_generation_prompt=True)
        except _RefusedError:
            return False
        except _RENDER_ERRORS:
            return True
        return False


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, object]],
    /,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[object] | None = None,
    **extra: object,
) -> list[int]:
    """The ids of a rendered conversation, in which only the template writes control tokens.

    What messages, tools and extra variables contain is plain text (user-defined tokens are part of
    plain text), also where two of them together spell a control token. For that, a character that
    occurs nowhere else interrupts control tokens in them while the template is rendered, and
    `Tokenizer.encode` removes it. The rest is rendered as it is, so that without such content the
    ids are those of the rendered text. Raises as `render` and `encode` do.
    """
    given = [list(messages), tools, *extra.values()]
    try:
        character = _free_character([template.source or "", *_strings(given)])
        guard = _Guard(tokenizer.control_texts, character)
        messages, tools, *values = (_guarded(value, guard) for value in given)
    except RecursionError as error:
        raise RequestError("the messages are nested too deeply") from error
    text = template.render(
        messages,
        add_generation_prompt=add_generation_prompt,
        tools=tools,
        **dict(zip(extra, values, strict=True)),
    )
    return tokenizer.encode(text, guard=character)


class _Guard:
    """Puts the guard character into every string that has, or could complete, a control token."""

    def __init__(self, controls: tuple[str, ...], character: str) -> None:
        self._controls = controls
        self._any = _any_of(controls)
        self._starts, self._ends = _edges(controls)
        self._longest = max(map(len, controls), default=0)
        self._character = character

    def string(self, text: str) -> str:
        """The text with a guard inside each control token that it touches."""
        core = text.strip()  # templates trim
        places = self._within(text) | self._at_edges(text)
        places |= {place + text.index(core) for place in self._at_edges(core)}
        return self._marked(text, places)

    def role(self, text: str) -> str:
        """The same for a role, which must not be the middle of a control token either."""
        if text in _ROLES:
            return text
        middle = any(text in control for control in self._controls)
        return (self._character if middle else "") + self.string(text)

    def key(self, text: str) -> str:
        """The same for a key; one that a template may look up is only searched for whole tokens."""
        return self._marked(text, self._within(text)) if text.isidentifier() else self.string(text)

    def _marked(self, text: str, places: set[int]) -> str:
        cuts = [0, *sorted(places), len(text)]
        return self._character.join(text[a:b] for a, b in itertools.pairwise(cuts))

    def _within(self, text: str) -> set[int]:
        """After the first character of each control token that the text contains."""
        places = set()
        match = self._any.search(text) if self._any else None
        while self._any and match:
            if match.end() - match.start() == 1:
                raise RequestError(f"a message has the control token {match[0]!r}")
            places.add(match.start() + 1)
            match = self._any.search(text, match.start() + 1)
        return places

    def _at_edges(self, text: str) -> set[int]:
        """Inside each control token that would begin, or end, outside of the text."""
        lengths = range(1, min(len(text), self._longest) + 1)
        starts = {len(text) - n + 1 for n in lengths if text[-n:] in self._starts}
        return starts | {n - 1 for n in lengths if text[:n] in self._ends}


@lru_cache(maxsize=4)
def _any_of(controls: tuple[str, ...]) -> re.Pattern[str] | None:
    shortest_first = sorted(controls, key=len)
    return re.compile("|".join(map(re.escape, shortest_first))) if controls else None


@lru_cache(maxsize=4)
def _edges(controls: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """All proper beginnings and all proper ends of the control tokens."""
    cuts = [(text[:cut], text[cut:]) for text in controls for cut in range(1, len(text))]
    return frozenset(start for start, _ in cuts), frozenset(end for _, end in cuts)


def _guarded(value: object, guard: _Guard) -> Any:
    """A copy of a JSON-like value with guards in its strings and keys."""
    if isinstance(value, str):
        return guard.string(value)
    if isinstance(value, Mapping):
        return {
            guard.key(key) if isinstance(key, str) else key: guard.role(item)
            if key == "role" and isinstance(item, str)
            else _guarded(item, guard)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_guarded(item, guard) for item in value]
    return value


def _strings(value: object) -> Iterator[str]:
    """All strings and keys of a JSON-like value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _free_character(texts: Sequence[str]) -> str:
    used = set().union(*texts)
    for code in _GUARDS:
        if chr(code) not in used:
            return chr(code)
    raise RequestError("the messages use all characters for private use")


def _compile(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ModelError(f"{_KEY} is no jinja template: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: unlike jinja's own filter it does not escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
