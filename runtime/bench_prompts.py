"""What strata-bench decodes: a few prompts of its own, those of a file, or random token ids."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

from strata_runtime.chat import ChatTemplate, encode_chat
from strata_runtime.errors import OptionError, RequestError
from strata_runtime.launch import Tokens
from strata_runtime.tokenizer import Tokenizer

#: Questions whose answers repeat much, little, or what was asked: drafters differ in these.
TEXTS = (
    "Count from one to thirty in words.",
    "Why is the sky blue?",
    "Write a Python function that reverses a list.",
    "Repeat this line five times: the quick brown fox.",
    "Tell a short story about a lighthouse.",
    "List the months of the year with their days.",
    "Translate into French: good morning, my friend.",
    "What is 17 times 23? Think step by step.",
)
#: Prompts of a model without a vocabulary: how many, and their tokens.
RANDOM_PROMPTS, RANDOM_TOKENS = 8, 24


class Encoder:
    """Texts to token ids: as messages where the model has a chat template, else as they are."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        """`metadata` is the model file's."""
        self._tokenizer = Tokenizer.from_metadata(metadata)
        self._template: ChatTemplate | None = None
        if self._tokenizer is not None:
            template = ChatTemplate.from_metadata(metadata, self._tokenizer)
            self._template = template if template.source is not None else None

    @property
    def ready(self) -> bool:
        """Has the model a vocabulary?"""
        return self._tokenizer is not None

    def encode(self, text: str) -> Tokens:
        """The prompt's ids; RequestError where the model has no vocabulary, or lacks a byte."""
        if self._tokenizer is None:
            raise RequestError("the model file has no vocabulary: give token ids")
        if self._template is None:
            return tuple(self._tokenizer.encode(text))
        messages = [{"role": "user", "content": text}]
        return tuple(encode_chat(self._tokenizer, self._template, messages))


def own_prompts(encoder: Encoder, vocab: int) -> list[Tokens]:
    """The prompts inside; random ids, the same each time, where the model has no vocabulary."""
    if encoder.ready:
        return [encoder.encode(text) for text in TEXTS]
    return [random_prompt(RANDOM_TOKENS, vocab, seed) for seed in range(RANDOM_PROMPTS)]


def random_prompt(tokens: int, vocab: int, seed: int) -> Tokens:
    """`tokens` random ids; equal arguments give equal ids."""
    draw = random.Random(seed)
    return tuple(draw.randrange(vocab) for _ in range(tokens))


def file_prompts(path: Path, encoder: Encoder) -> list[Tokens]:
    """The prompts of a JSON list (texts, or lists of token ids), or of the lines of a .txt file.

    OptionError names the file, and the item that is no prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise OptionError(f"{path}: cannot be read: {reason}") from error
    if path.suffix == ".txt":
        items: list[object] = [line for line in text.splitlines() if line.strip()]
    else:
        items = _json_list(path, text)
    if not items:
        raise OptionError(f"{path}: holds no prompts")
    return [_prompt(f"{path}: prompt {i}", item, encoder) for i, item in enumerate(items)]


def _json_list(path: Path, text: str) -> list[object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{path}: not JSON: {error} (prompts one a line go in a .txt file)"
        ) from error
    if not isinstance(value, list):
        raise OptionError(f"{path}: not a JSON list of prompts")
    return value


def _prompt(where: str, item: object, encoder: Encoder) -> Tokens:
    if isinstance(item, str):
        try:
            tokens = encoder.encode(item)
        except RequestError as error:
            raise OptionError(f"{where}: {error}") from error
    elif isinstance(item, list) and all(type(token) is int for token in item):
        tokens = tuple(item)
    else:
        raise OptionError(f"{where} is neither a text nor a list of token ids")
    if not tokens:
        raise OptionError(f"{where} is empty")
    return tokens
