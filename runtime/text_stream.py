"""The text of one request, token by token: whole characters, and nothing of a stop string."""

import codecs
from collections.abc import Sequence

from strata_runtime.errors import RequestError
from strata_runtime.tokenizer import Tokenizer


class TextStream:
    """Turns the tokens of one request into text that can be shown at once.

    Held back are bytes that are not a whole character yet and text that may be the beginning of a
    stop string. The stop string that is complete first ends the text before it; of several that
    end at the same character the longest one counts. So the text does not depend on how the tokens
    cut it. A control token ends the text as well if `stop` names it.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, continues: bool = False
    ) -> None:
        """`continues`: the text goes on from a prompt, so a space in front is part of it.

        Raises RequestError for an empty stop string.
        """
        if "" in stop:
            raise RequestError("a stop string is empty")
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = tokenizer.space_prefix and not continues
        self._held = ""
        self._shown: list[str] = []
        self._stopped = False
        self._finished = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._stopped

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "".join(self._shown)

    def push(self, token: int) -> str:
        """Takes the next token; returns the text that can be shown now, often none.

        After a stop string, or after `finish`, tokens are ignored.
        """
        if self._stopped or self._finished:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._drops_space and data:
            data = data.removeprefix(b" ")
            self._drops_space = False
        shown = self._take(self._decoder.decode(data))
        if not data and not self._stopped and self._is_stop_token(token):
            shown += self.finish()
            self._stopped = True
        return shown

    def finish(self) -> str:
        """Ends the text; returns what was held back, with U+FFFD for a character cut short."""
        if self._stopped or self._finished:
            return ""
        self._finished = True
        shown = self._take(self._decoder.decode(b"", final=True))
        return shown if self._stopped else shown + self._show(self._held)

    def _take(self, new: str) -> str:
        self._held += new
        found = [
            (start + len(stop), start)
            for stop in self._stop
            if (start := self._held.find(stop)) >= 0
        ]
        if found:
            self._stopped = True
            return self._show(self._held[: min(found)[1]])
        return self._show(self._held[: len(self._held) - self._uncertain()])

    def _show(self, text: str) -> str:
        self._held = self._held[len(text) :]
        if text:
            self._shown.append(text)
        return text

    def _uncertain(self) -> int:
        """How many characters at the end of the held text may begin a stop string."""
        held = self._held
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(held)), 0, -1):
            if any(stop.startswith(held[-length:]) for stop in self._stop):
                return length
        return 0

    def _is_stop_token(self, token: int) -> bool:
        return (
            self._tokenizer.token_bytes(token, special=True).decode(errors="replace") in self._stop
        )
