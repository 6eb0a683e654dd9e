"""Small vocabularies as GGUF metadata, and texts that are hard to encode."""

import random
from collections.abc import Sequence

import numpy as np

from gguf_maker import byte_alphabet
from strata_runtime.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im|>", "<s>")
USER_DEFINED_TEXTS = ("<think>", "</think>", "<|", "   ")
MERGES = (
    *("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ hello", "Ġ Ġ"),
    *("1 2", "3 4", "12 34", "< |", "i m", "im _", "e n", "en d", "| >", "<| im_", "<|im_ end"),
    *("a b", "b c", "ab c", "ð Ł", "ðŁ ĺ", "ðŁĺ Ģ", "Ċ Ċ", "u s", "e r", "us er", "ä ¸", "Ģ 1"),
)
HARD_TEXTS = (
    "",
    " ",
    "hello world  hello   1234",
    "\r\n\n \t\x00\x0b\r",
    "e\u0301 a\u0300\u0301\u0302 \u200d\ufeff\u2028",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0627\u0644\u0639",
    "it's IT'S 12345.678 <|> \U0010fffd\U000f0000",
)
_PIECES = (*HARD_TEXTS, "hello", "ab", "abc", "<", "|", "\n", "  ", "1", "im_end", "\u00e4")


def byte_level(
    *,
    controls: Sequence[str] = CONTROLS,
    user_defined: Sequence[str] = USER_DEFINED_TEXTS,
    normal: Sequence[str] = (),
    **keys: object,
) -> dict[str, object]:
    """Metadata of kind gpt2: controls, user-defined, all bytes, one token per merge, `normal`."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    plain = [text for text in (*byte_alphabet(), *merged, *normal) if text not in controls]
    tokens = [*controls, *(text for text in user_defined if text not in plain), *plain]
    kinds = {**dict.fromkeys(user_defined, USER_DEFINED), **dict.fromkeys(controls, CONTROL)}
    return metadata(
        "gpt2", tokens, [kinds.get(t, NORMAL) for t in tokens], pre="gpt-2", merges=[*MERGES]
    ) | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def sentencepiece(pieces: Sequence[str] = (), **keys: object) -> dict[str, object]:
    """Metadata of kind llama: <unk> <s> </s>, a user-defined token, all bytes, U+2581, `pieces`.

    The earlier a piece, the better its score.
    """
    fixed = ["<unk>", "<s>", "</s>", "<tool>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*fixed, *byte_tokens, "\u2581", *pieces]
    kinds = [UNKNOWN, CONTROL, CONTROL, USER_DEFINED, *[BYTE] * 256]
    kinds += [NORMAL] * (len(tokens) - len(kinds))
    scores = np.array([0.0] * 260 + [-float(n) for n in range(len(tokens) - 260)], np.float32)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return metadata("llama", tokens, kinds, **{"scores": scores, **ids, **keys})


def metadata(
    model: str, tokens: list[str], kinds: Sequence[int], **keys: object
) -> dict[str, object]:
    """The metadata of any vocabulary, as a GGUF reader gives it."""
    types = np.array(kinds, np.int32)
    own = {"model": model, "tokens": tokens, "token_type": types, **keys}
    return {f"tokenizer.ggml.{key}": value for key, value in own.items()}


def tokenizer(described: dict[str, object]) -> Tokenizer:
    """The tokenizer of metadata that has one."""
    made = Tokenizer.from_metadata(described)
    assert made is not None
    return made


def random_text(rng: random.Random, length: int) -> str:
    """`length` pieces of hard texts and random characters, no surrogates among them."""
    parts = []
    for _ in range(length):
        if rng.random() < 0.7:
            parts.append(rng.choice(_PIECES))
        else:
            limit = rng.choice([0x80, 0x800, 0xD800, 0x110000])
            code = rng.randrange(limit)
            parts.append(chr(code if not 0xD800 <= code < 0xE000 else 0x41))
    return "".join(parts).replace("\u2581", "_")
