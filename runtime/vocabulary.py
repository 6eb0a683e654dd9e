"""The vocabulary in a GGUF file's metadata, checked: damaged metadata is a ModelError."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from strata_runtime.errors import ModelError

KEY = "tokenizer.ggml."
_NAMED = ("bos", "eos", "eot", "eom", "unknown")
_KINDS = {"integers": "iu", "floats": "f"}  # numpy's letters
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class TokenType(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The file's tokens: texts and types by id, ids by text, and the ids that the file names.

    `ids` leaves out empty texts and such that are no Unicode: no text gives them.
    `named` has bos, eos, eot, eom and unknown, as far as the file has them.
    """

    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    named: dict[str, int]

    def ids_of(self, *types: TokenType) -> dict[str, int]:
        """The tokens of these types, by text."""
        return {text: token for text, token in self.ids.items() if self.types[token] in types}

    def ids_without(self, *types: TokenType) -> dict[str, int]:
        """The tokens of all other types, by text."""
        return {text: token for text, token in self.ids.items() if self.types[token] not in types}

    @property
    def named_texts(self) -> dict[str, str]:
        """The texts of the named tokens, where a text can give them."""
        texts = {name: self.tokens[token] for name, token in self.named.items()}
        return {name: text for name, text in texts.items() if text in self.ids}


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """The vocabulary of a file that has one. Raises ModelError if it is damaged."""
    tokens = read_texts(metadata, "tokens")
    if not tokens:
        raise ModelError(f"{KEY}tokens is empty")
    types: list[int] = read_numbers(metadata, "token_type", "integers", len(tokens)).tolist()
    valid = is_unicode("".join(tokens))
    ids: dict[str, int] = {}
    for token, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if not TokenType.NORMAL <= kind <= TokenType.BYTE:
            raise ModelError(f"{KEY}token_type[{token}] is {kind}, not in 1..6")
        if kind == TokenType.BYTE and not _BYTE_TOKEN.fullmatch(text):
            raise ModelError(f"{KEY}tokens[{token}]: {text!r} is typed as a byte, not as <0x00>")
        # Some files pad their list with empty texts; bytes that are no UTF-8 come as surrogates.
        if text and (valid or is_unicode(text)) and ids.setdefault(text, token) != token:
            raise ModelError(f"{KEY}tokens: {text!r} is both token {ids[text]} and token {token}")
    named = {name: _token_id(metadata, f"{name}_token_id", len(tokens)) for name in _NAMED}
    return Vocabulary(tokens, types, ids, {k: v for k, v in named.items() if v is not None})


def read_text(metadata: Mapping[str, object], key: str, default: str) -> str:
    """A string of the tokenizer's metadata. Raises ModelError if it is something else."""
    value = metadata.get(KEY + key, default)
    if not isinstance(value, str):
        raise ModelError(f"{KEY}{key} is a {type(value).__name__}, not a string")
    return value


def read_flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    """A truth value of the tokenizer's metadata. Raises ModelError if it is something else."""
    value = metadata.get(KEY + key, default)
    if not isinstance(value, bool | np.bool_):
        raise ModelError(f"{KEY}{key} is a {type(value).__name__}, not true or false")
    return bool(value)


def read_texts(metadata: Mapping[str, object], key: str) -> list[str]:
    """A list of strings that must be there. Raises ModelError."""
    value = metadata.get(KEY + key)
    if value is None:
        raise ModelError(f"{KEY}{key} is missing")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ModelError(f"{KEY}{key} is not a list of strings")
    return value


def read_numbers(
    metadata: Mapping[str, object], key: str, kind: str, count: int
) -> npt.NDArray[np.generic]:
    """An array of `count` "integers" or "floats" that must be there. Raises ModelError."""
    value = metadata.get(KEY + key)
    if value is None:
        raise ModelError(f"{KEY}{key} is missing")
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in _KINDS[kind]:
        raise ModelError(f"{KEY}{key} is not an array of {kind}")
    if len(value) != count:
        raise ModelError(f"{KEY}{key} has {len(value)} entries for {count} tokens")
    return value


def _token_id(metadata: Mapping[str, object], key: str, count: int) -> int | None:
    value = metadata.get(KEY + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ModelError(f"{KEY}{key} is a {type(value).__name__}, not a token id")
    if not 0 <= value < count:
        raise ModelError(f"{KEY}{key} is {value}, but the file lists {count} tokens")
    return int(value)


def is_unicode(text: str) -> bool:
    """Whether a string has no lone surrogates, and so can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
