"""Drafters that answer from the host: what may come next in one text.

A draft never changes a text: it is accepted if and only if it is what would have been drawn. A
drafter only decides how many tokens a window brings.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from strata_runtime.errors import OptionError
from strata_runtime.launch import Tokens

#: Lengths of the n-grams that are looked up, the longest first.
NGRAMS = (4, 3, 2)


class Drafter(Protocol):
    """Follows one text, and proposes its continuation."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that now belong to the text: its prompt first, then what was drawn."""

    def propose(self, depth: int) -> Tokens:
        """Up to `depth` tokens that may follow the text."""


class NoDrafter:
    """Proposes nothing."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Nothing to learn."""

    def propose(self, depth: int) -> Tokens:
        """No tokens."""
        return ()


class NgramDrafter:
    """Proposes what followed the last few tokens when they stood in the text before.

    Every n-gram is kept with the place behind its latest occurrence but the text's own end, so that
    a proposal costs a few look-ups, however long the text is.
    """

    def __init__(self) -> None:
        """An empty text."""
        self._text: list[int] = []
        self._behind: dict[Tokens, int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Each new token makes the n-grams that end before it findable."""
        for token in tokens:
            end = len(self._text)
            for n in NGRAMS:
                if n <= end:
                    self._behind[tuple(self._text[end - n :])] = end
            self._text.append(token)

    def propose(self, depth: int) -> Tokens:
        """The continuation of the longest n-gram that is found."""
        for n in NGRAMS:
            place = self._behind.get(tuple(self._text[-n:])) if n <= len(self._text) else None
            if place is not None:
                return tuple(self._text[place : place + depth])
        return ()


class ReplayDrafter:
    """Proposes a recorded text with a set acceptance: for tests and benchmarks.

    `holds` says of each position of the text whether its draft is right; a wrong one is the next
    token id.
    """

    def __init__(self, record: Sequence[int], vocab: int, holds: Callable[[int], bool]) -> None:
        """`record` is the prompt with its continuation."""
        self._record, self._vocab, self._holds = record, vocab, holds
        self._length = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Move on; the record knows the tokens already."""
        self._length += len(tokens)

    def propose(self, depth: int) -> Tokens:
        """The recorded tokens that follow, some of them made wrong."""
        places = range(self._length, min(self._length + depth, len(self._record)))
        return tuple(
            self._record[i] if self._holds(i) else (self._record[i] + 1) % self._vocab
            for i in places
        )


def acceptance(spec: str, seed: int = 0) -> Callable[[int], bool]:
    """Which drafts hold, for a ReplayDrafter: a pattern such as 1101, repeated, or a probability.

    Position i of the text, its prompt included, has item i of the pattern; or it holds with the
    probability, by a hash of the seed and the position: equal arguments give equal answers.
    OptionError for anything else.
    """
    if spec and set(spec) <= {"0", "1"}:
        return lambda position: spec[position % len(spec)] == "1"
    try:
        chance = float(spec)
    except ValueError:
        chance = -1.0
    if not 0 <= chance <= 1:
        raise OptionError(f"{spec!r} is neither a probability from 0 to 1 nor a pattern as 1101")
    return lambda position: _uniform(seed, position) < chance


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else."""
    words = struct.pack("<2Q", seed & 0xFFFFFFFFFFFFFFFF, position)
    (bits,) = struct.unpack("<Q", hashlib.blake2b(words, digest_size=8).digest())
    return float(bits >> 11) / float(1 << 53)


#: Drafters that are programs; the others answer from the host.
DEVICE_DRAFTERS = frozenset({"mtp"})

#: Drafters by the plan's word for them.
HOST_DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "ngram": NgramDrafter,
    "mtp": NoDrafter,  # its programs propose, on the device
}
