"""A request, and where its text ends."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata_runtime.errors import RequestError
from strata_runtime.launch import Sampling

#: Why a text ended: an end token or stop string, its length, a full context, the user, or a
#: window whose logits allow no token.
STOP, LENGTH, CONTEXT, CANCELLED, FAILED = "stop", "length", "context", "cancelled", "failed"


@dataclass(frozen=True)
class Request:
    """A prompt of token ids and how to go on from it; `id` is unique within an engine."""

    id: int
    prompt: tuple[int, ...]
    max_tokens: int
    end_tokens: frozenset[int] = frozenset()
    sampling: Sampling = field(default_factory=Sampling)


def check_request(request: Request, *, vocab: int, context: int) -> None:
    """RequestError where a request cannot be served: its prompt, its length, its sampling."""
    prompt, s = request.prompt, request.sampling
    if not prompt:
        raise RequestError("the prompt is empty")
    if bad := [t for t in prompt if not 0 <= t < vocab]:
        raise RequestError(f"prompt token {bad[0]} is not in the vocabulary of {vocab} tokens")
    if len(prompt) > context:
        raise RequestError(f"the prompt has {len(prompt)} tokens, the context holds {context}")
    if request.max_tokens < 1:
        raise RequestError(f"max_tokens is {request.max_tokens}, expected 1 or more")
    rules = {
        "temperature": 0 <= _single(s.temperature) < float("inf"),
        "top_k": 0 <= s.top_k < 1 << 31,
        "top_p": 0 < _single(s.top_p) <= 1,
        "min_p": 0 <= s.min_p <= 1,
        "repeat_penalty": 0 < _single(s.repeat_penalty) < float("inf"),
        "presence_penalty": abs(_single(s.presence_penalty)) < float("inf"),
        "frequency_penalty": abs(_single(s.frequency_penalty)) < float("inf"),
        "penalty_last": 0 <= s.penalty_last < 1 << 31,
        "seed": 0 <= s.seed < 1 << 64,
    }
    if broken := [name for name, holds in rules.items() if not holds]:
        raise RequestError(f"{broken[0]} is {getattr(s, broken[0])}, which is out of range")


def _single(value: float) -> float:
    """The value as the table has it: a float32, which may have become 0 or infinite."""
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return float("inf")
    return float(single)


def cut(
    request: Request, generated: int, drawn: Sequence[int], context: int
) -> tuple[tuple[int, ...], str | None]:
    """The tokens of one verdict that belong to the text, and why it ends with them, if it does.

    `generated` tokens came before. An end token belongs to the text. A token at position
    `context` could not be read by a row of its own: the text ends with it.
    """
    for i, token in enumerate(drawn):
        length = generated + i + 1
        kept = tuple(drawn[: i + 1])
        if token in request.end_tokens:
            return kept, STOP
        if length == request.max_tokens:
            return kept, LENGTH
        if len(request.prompt) + length > context:
            return kept, CONTEXT
    return tuple(drawn), None
