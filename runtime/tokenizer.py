"""Text to token ids and back, from a GGUF file's own vocabulary.

The tokenizers library merges, and cuts before it. The metadata, bytes, bos and control tokens are
done here: the library never sees a control token, so plain text can never become one.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from strata_runtime.errors import ModelError, RequestError
from strata_runtime.pretokenizers import BYTE_LETTERS, PRE_TOKENIZERS, PreTokenizer
from strata_runtime.vocabulary import (
    KEY,
    TokenType,
    Vocabulary,
    is_unicode,
    read_flag,
    read_numbers,
    read_text,
    read_texts,
    read_vocabulary,
)

_LOG = logging.getLogger(__name__)
_MODELS = ("gpt2", "llama")
_SPACE = "\u2581"  # how SentencePiece writes a space inside a token
# Tokens that no plain text may give, and that have no text of their own.
_SILENT = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED)
_BYTE_OF_LETTER = {ord(letter): byte for byte, letter in enumerate(BYTE_LETTERS)}
# UTF-8 never contains the other bytes, so a vocabulary may lack them.
_TEXT_BYTES = [*range(0xC0), *range(0xC2, 0xF5)]


class Tokenizer:
    """One model's vocabulary. It keeps no state between calls, so requests may share it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        library: LibraryTokenizer,
        *,
        sentencepiece: bool,
        adds_bos: bool,
        space_prefix: bool,
    ) -> None:
        self.adds_bos = adds_bos
        self.space_prefix = space_prefix  # a text is read as if it began with one more space
        self._vocabulary = vocabulary
        self._library = library
        self._sentencepiece = sentencepiece
        self._control_ids = vocabulary.ids_of(TokenType.CONTROL)
        # SentencePiece marks the spaces of a text before it looks for user-defined tokens.
        self._user_ids = {
            text.replace(_SPACE, " ") if sentencepiece else text: token
            for text, token in vocabulary.ids_of(TokenType.USER_DEFINED).items()
        }
        self._control_pattern = _any_of(self._control_ids)
        self._user_pattern = _any_of(self._user_ids)
        self._missing_bytes = None if sentencepiece else _missing_bytes(vocabulary)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> "Tokenizer | None":
        """The tokenizer of a GGUF file; None if the file has no vocabulary and runs on ids only.

        Raises ModelError if the metadata is damaged, or names a kind that is not supported.
        """
        model = read_text(metadata, "model", "none")
        if model == "none":
            return None
        if model not in _MODELS:
            raise ModelError(
                f"{KEY}model is {model!r}; supported: {', '.join(_MODELS)}, none (ids only)"
            )
        vocabulary = read_vocabulary(metadata)
        sentencepiece = model == "llama"
        cuts = None if sentencepiece else _pre_tokenizer(metadata)
        if cuts is None:
            library = _score_library(vocabulary, metadata)
        else:
            library = _merge_library(vocabulary, metadata, cuts)
        return cls(
            vocabulary,
            library,
            sentencepiece=sentencepiece,
            adds_bos=_adds_bos(
                metadata, vocabulary, sentencepiece if cuts is None else cuts.adds_bos
            ),
            space_prefix=sentencepiece and read_flag(metadata, "add_space_prefix", True),
        )

    @property
    def vocab_size(self) -> int:
        """How many tokens the file lists."""
        return len(self._vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the file names one."""
        return self._vocabulary.named.get("bos")

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a generated text: end of sequence, of turn, of message."""
        named = self._vocabulary.named
        return frozenset(named[name] for name in ("eos", "eot", "eom") if name in named)

    @property
    def control_texts(self) -> tuple[str, ...]:
        """The texts of the control tokens, in order of their ids."""
        return tuple(self._control_ids)

    @property
    def named_texts(self) -> dict[str, str]:
        """The texts of bos, eos, eot, eom and unknown, as far as the file names them."""
        return self._vocabulary.named_texts

    def encode(
        self, text: str, *, special: bool = True, add_bos: bool | None = None, guard: str = ""
    ) -> list[int]:
        """The ids of `text`, with bos in front where the file says so (or as `add_bos` says).

        With `special`, control tokens written in the text are recognised, longest first, except
        those that the character `guard` interrupts; guards are removed then. Without, they are
        plain text. A bos that the text already begins with is not doubled.
        Raises RequestError for lone surrogates and for bytes that the vocabulary cannot write.
        """
        if not is_unicode(text):
            raise RequestError("the text has a lone surrogate: it is no Unicode text")
        ids: list[int] = []
        for stretch, control in _cut(self._control_pattern if special else None, text):
            plain = stretch.replace(guard, "") if guard else stretch
            if plain:
                ids += self._encode_plain(plain)
            if control is not None:
                ids.append(self._control_ids[control])
        return self._bos(ids, add_bos) + ids

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The exact bytes of a token; b"" for control, unknown and unused ones unless `special`.

        An embedding may have more rows than the list has tokens; those have no text.
        """
        if token < 0:
            raise RequestError(f"token id {token} is negative")
        if token >= self.vocab_size:
            return b""
        text, kind = self._vocabulary.tokens[token], self._vocabulary.types[token]
        if kind in _SILENT:
            return _utf8(text) if special else b""
        if kind == TokenType.BYTE:
            return bytes.fromhex(text[3:5])
        if self._sentencepiece:
            return _utf8(text.replace(_SPACE, " "))
        return _utf8(text) if kind == TokenType.USER_DEFINED else _byte_level(text)

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False
    ) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD.

        The space that `encode` puts before a text is taken away again, unless the ids continue
        another text (`continues`).
        """
        data = b"".join(self.token_bytes(token, special=not skip_special) for token in ids)
        if self.space_prefix and not continues:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def _bos(self, ids: list[int], add_bos: bool | None) -> list[int]:
        if not (self.adds_bos if add_bos is None else add_bos):
            return []
        if self.bos_id is None:
            raise RequestError("this model names no bos token to begin a text with")
        return [] if ids[:1] == [self.bos_id] else [self.bos_id]

    def _encode_plain(self, text: str) -> list[int]:
        """The ids of a stretch that begins the text or follows a control token."""
        ids: list[int] = []
        for piece, user_defined in _cut(
            self._user_pattern, " " + text if self.space_prefix else text
        ):
            if piece:
                ids += self._encode_piece(piece)
            if user_defined is not None:
                ids.append(self._user_ids[user_defined])
        return ids

    def _encode_piece(self, text: str) -> list[int]:
        if self._missing_bytes and (missing := self._missing_bytes.search(text.encode())):
            # The library would drop the byte without a word.
            raise RequestError(f"this vocabulary cannot write the byte 0x{missing[0].hex()}")
        marked = text.replace(" ", _SPACE) if self._sentencepiece else text
        return self._library.encode(marked, add_special_tokens=False).ids


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds the leftmost of these texts, the longest of those that start there."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _cut(pattern: re.Pattern[str] | None, text: str) -> Iterator[tuple[str, str | None]]:
    """The text as pairs (what lies before a match, the match); the last pair has no match."""
    start = 0
    for match in pattern.finditer(text) if pattern else ():
        yield text[start : match.start()], match[0]
        start = match.end()
    yield text[start:], None


def _utf8(text: str) -> bytes:
    """A token's text as the file has it; the reader keeps bytes that are no UTF-8 as surrogates."""
    return text.encode(errors="surrogateescape")


def _byte_level(text: str) -> bytes:
    """The bytes that a byte-level token stands for; a token that is not written so is UTF-8."""
    try:
        return text.translate(_BYTE_OF_LETTER).encode("latin-1")
    except UnicodeEncodeError:
        return _utf8(text)


def _missing_bytes(vocabulary: Vocabulary) -> re.Pattern[bytes] | None:
    """A pattern that finds the bytes of UTF-8 texts that have no token of their own."""
    ids = vocabulary.ids_without(*_SILENT)
    missing = [byte for byte in _TEXT_BYTES if BYTE_LETTERS[byte] not in ids]
    return re.compile(b"[%b]" % re.escape(bytes(missing))) if missing else None


def _merge_library(
    vocabulary: Vocabulary, metadata: Mapping[str, object], cuts: PreTokenizer
) -> LibraryTokenizer:
    """Byte-level BPE by the file's merges."""
    # Plain text must not reach a control token, neither by a merge nor as a whole word.
    ids = vocabulary.ids_without(*_SILENT)
    merges = []
    for index, line in enumerate(read_texts(metadata, "merges")):
        left, _, right = line.partition(" ")
        if left in ids and right in ids and left + right in ids:
            merges.append((left, right))
        elif not {left, right, left + right} <= vocabulary.ids.keys():
            raise ModelError(f"{KEY}merges[{index}]: {line!r} names a token that is not listed")
    library = LibraryTokenizer(BPE(vocab=ids, merges=merges, ignore_merges=cuts.whole_words))
    splits = [Split(Regex(pattern), "isolated") for pattern in cuts.patterns]
    library.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    return library


def _score_library(vocabulary: Vocabulary, metadata: Mapping[str, object]) -> LibraryTokenizer:
    """SentencePiece's BPE: any two neighbours that together are a token merge, best score first."""
    scores = read_numbers(metadata, "scores", "floats", len(vocabulary.tokens))
    if np.isnan(scores).any():
        raise ModelError(f"{KEY}scores: a score is not a number")
    normal = vocabulary.ids_of(TokenType.NORMAL)
    if _SPACE not in normal:
        raise ModelError(f"{KEY}tokens: no token for the space (U+2581)")
    unknown = vocabulary.named_texts.get("unknown")
    ids = normal | vocabulary.ids_of(TokenType.BYTE)
    if unknown is None and not all(f"<0x{byte:02X}>" in ids for byte in _TEXT_BYTES):
        raise ModelError(f"{KEY}tokens: neither all byte tokens nor an unknown token")
    model = BPE(
        vocab=ids if unknown is None else ids | {unknown: vocabulary.named["unknown"]},
        merges=_merges_by_score(normal, scores.tolist()),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    return LibraryTokenizer(model)


def _merges_by_score(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, in the order in which they are tried."""
    merges = []
    for text in sorted(ids, key=lambda text: (-scores[ids[text]], ids[text])):
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        known = [(left, right) for left, right in halves if left in ids and right in ids]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _pre_tokenizer(metadata: Mapping[str, object]) -> PreTokenizer:
    name = read_text(metadata, "pre", "")
    if not name:
        _LOG.warning("the file names no pre-tokenizer (%spre): long words may be cut amiss", KEY)
        name = "default"
    if name not in PRE_TOKENIZERS:
        raise ModelError(f"{KEY}pre is {name!r}; supported: {', '.join(PRE_TOKENIZERS)}")
    return PRE_TOKENIZERS[name]


def _adds_bos(metadata: Mapping[str, object], vocabulary: Vocabulary, default: bool) -> bool:
    adds = read_flag(metadata, "add_bos_token", default and "bos" in vocabulary.named)
    if adds and "bos" not in vocabulary.named:
        raise ModelError(f"{KEY}add_bos_token is true, but there is no {KEY}bos_token_id")
    return adds
