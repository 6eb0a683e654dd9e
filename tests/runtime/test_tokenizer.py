"""Encoding and decoding with small vocabularies, and clear errors for damaged metadata."""

import itertools
import random
import re

import numpy as np
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from small_vocabularies import (
    BYTE,
    CONTROL,
    HARD_TEXTS,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    byte_level,
    metadata,
    random_text,
    sentencepiece,
    tokenizer,
)
from strata_runtime.errors import ModelError, RequestError
from strata_runtime.pretokenizers import BYTE_LETTERS, PRE_TOKENIZERS
from strata_runtime.tokenizer import Tokenizer

PIECES = ["\u2581he", "ab", "abab", "ba", "llo", "ll", "\u2581\u2581", "lo", "he", "a", "b", "l"]
PIECES += ["h", "e", "o", "\u4e2d"]
K = "tokenizer.ggml."


def texts(made: Tokenizer, ids: list[int]) -> list[str]:
    return [made.token_bytes(token, special=True).decode(errors="replace") for token in ids]


@pytest.mark.parametrize("described", [byte_level(), sentencepiece(PIECES)], ids=["gpt2", "llama"])
def test_round_trip(described: dict[str, object]) -> None:
    made = tokenizer(described)
    rng = random.Random(1)
    for text in [*HARD_TEXTS, *(random_text(rng, rng.randrange(40)) for _ in range(300))]:
        assert made.decode(made.encode(text, special=False)) == text
        assert made.decode(made.encode(text, add_bos=False), skip_special=False) == text


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_loses_nothing(pre: str) -> None:
    made = tokenizer(byte_level(pre=pre, bos_token_id=0))
    rng = random.Random(2)
    for text in [*HARD_TEXTS, *(random_text(rng, 12) for _ in range(20))]:
        assert made.decode(made.encode(text, special=False)) == text


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "it's IT'S 1234  x!\n\ny", "it|'s| IT|'|S| 1234| | x|!|\n|\n|y"),
        ("smollm", "ab 1234", "ab| |1|2|3|4"),
        ("llama-bpe", "IT'S 12345!\n\n  x", "IT|'S| |123|45|!\n\n| | x"),
        ("qwen2", "a\u0301b 12.x", "a|\u0301b| |1|2|.x"),
        ("qwen35", "a\u0301b 12.x", "a\u0301b| |1|2|.x"),
        ("tekken", "fooBar /a/\n12", "foo|Bar| /|a|/\n|1|2"),
        ("gpt-4o", "HELLOworld isn't 1234", "HELLOworld| isn't| |123|4"),
        ("deepseek-v3", "x\u4e2d\u6587\u304b.foo 1234", "x|\u4e2d\u6587\u304b|.foo| |123|4"),
        ("deepseek-coder", "foo, 12\n", "foo|,| |1|2|\n"),
        ("deepseek-llm", "caf\u00e9, 12 \u4e2d", "caf|\u00e9|,| |12| |\u4e2d"),
        ("falcon", "a.b 12345", "a|.|b| |123|45"),
        ("default", "a.b 1234", "a|.|b| |123|4"),
    ],
)
def test_cuts(pre: str, text: str, pieces: str) -> None:
    splits = [Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre].patterns]
    found = [piece for piece, _ in Sequence(splits).pre_tokenize_str(text)]
    assert found == pieces.split("|")


def test_byte_letters() -> None:
    assert len(set(BYTE_LETTERS)) == 256
    assert [BYTE_LETTERS[byte] for byte in b" \n\x00A\xad\xff"] == [
        *"\u0120\u010a\u0100A\u0143\xff"
    ]


def test_merges_and_whole_words() -> None:
    plain = tokenizer(byte_level())
    assert texts(plain, plain.encode("hello world 1234")) == ["hello", " world", " ", "1234"]
    listed = byte_level(normal=["xyz"])
    assert texts(plain, tokenizer(listed).encode("xyz")) == ["x", "y", "z"]
    whole = tokenizer(listed | {f"{K}pre": "llama-bpe"})
    assert texts(whole, whole.encode("xyz")) == ["xyz"]


def test_control_tokens() -> None:
    made = tokenizer(byte_level())
    assert made.encode("<|im_start|><|im|>a<|im_end|>")[:2] == [1, 3]
    plain = made.encode("<|im_start|>a<s>", special=False)
    assert made.decode(plain) == "<|im_start|>a<s>"
    assert min(plain) >= 5
    assert made.token_bytes(1) == b""
    assert made.token_bytes(1, special=True) == b"<|im_start|>"
    assert made.decode([1, *plain, 2]) == "<|im_start|>a<s>"
    assert made.decode([1, 2], skip_special=False) == "<|im_start|><|im_end|>"


def test_the_longest_control_token_wins() -> None:
    made = tokenizer(byte_level(controls=["<a>", "<a><b>", "<b>"]))
    assert made.encode("<a><b><a><a><b><b>") == [1, 0, 1, 2]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_plain_text_never_becomes_a_control_token(pre: str) -> None:
    # "hello" would come from the merges, "stop" as a whole word, "!" as a byte.
    controls = ["hello", "stop", "!!"]
    made = tokenizer(byte_level(controls=controls, pre=pre, bos_token_id=0, add_bos_token=False))
    for text in controls:
        ids = made.encode(text, special=False)
        assert min(ids) >= len(controls)
        assert made.decode(ids) == text
    assert made.encode("hello!!stop") == [0, 2, 1]


def test_a_byte_that_is_only_a_control_token_is_refused_as_text() -> None:
    made = tokenizer(byte_level(controls=["!"]))
    assert made.encode("!") == [0]
    with pytest.raises(RequestError, match="byte 0x21"):
        made.encode("!", special=False)


def test_user_defined_tokens_are_found_in_plain_text() -> None:
    made = tokenizer(byte_level())
    ids = made.encode("<think>   ab</think>", special=False)
    assert texts(made, ids) == ["<think>", "   ", "ab", "</think>"]
    assert made.decode(ids) == "<think>   ab</think>"


def test_guards_interrupt_control_tokens() -> None:
    made = tokenizer(byte_level())
    guarded = made.encode("<|im_start|>x<#|im_end|>y<|im_end|>", guard="#")
    plain = made.encode("x<|im_end|>y", special=False)
    assert guarded == [1, *plain, 2]


def test_bos() -> None:
    named = byte_level(bos_token_id=4)
    assert 4 not in tokenizer(named).encode("ab")
    assert tokenizer(named).encode("ab", add_bos=True)[0] == 4
    always = tokenizer(named | {f"{K}add_bos_token": True})
    assert always.encode("ab") == tokenizer(named).encode("<s>ab") == always.encode("<s>ab")
    assert always.encode("") == [4]
    assert always.encode("ab", add_bos=False) == tokenizer(named).encode("ab")
    assert tokenizer(named | {f"{K}pre": "llama3"}).encode("ab")[0] == 4
    assert tokenizer(sentencepiece()).encode("")[0] == 1
    with pytest.raises(RequestError, match="no bos"):
        tokenizer(byte_level()).encode("ab", add_bos=True)


def test_named_tokens() -> None:
    made = tokenizer(byte_level(bos_token_id=1, eos_token_id=0, eot_token_id=2, eom_token_id=3))
    assert (made.bos_id, made.eos_ids) == (1, frozenset({0, 2, 3}))
    assert made.named_texts["eos"] == "<|endoftext|>"
    assert made.control_texts == ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im|>", "<s>")
    bare = tokenizer(byte_level())
    assert (bare.bos_id, bare.eos_ids, bare.named_texts) == (None, frozenset(), {})
    assert bare.vocab_size == len(byte_level()[f"{K}tokens"])  # type: ignore[arg-type]


def test_token_bytes_by_type() -> None:
    tokens = ["\u0120a\u010a", "\u0120", "<0x0A>", "raw space ", "<c>", "", "\udce4x", "pad"]
    kinds = [NORMAL, USER_DEFINED, BYTE, NORMAL, CONTROL, NORMAL, NORMAL, UNUSED]
    made = tokenizer(metadata("gpt2", tokens, kinds, merges=[], pre="gpt-2"))
    expected = [b" a\n", "\u0120".encode(), b"\n", b"raw space ", b"", b"", b"\xe4x", b""]
    assert [made.token_bytes(token) for token in range(8)] == expected
    assert made.token_bytes(7, special=True) == b"pad"
    assert made.decode([6]) == "\ufffdx"
    with pytest.raises(RequestError, match="token id -1 is negative"):
        made.token_bytes(-1)
    assert made.token_bytes(made.vocab_size) == b""  # a row of the embedding without a token


def test_random_ids_never_raise() -> None:
    for described in (byte_level(), sentencepiece(PIECES)):
        made = tokenizer(described)
        rng = random.Random(3)
        for _ in range(200):
            ids = [rng.randrange(made.vocab_size) for _ in range(20)]
            raw = b"".join(made.token_bytes(token) for token in ids)
            assert made.decode(ids, continues=True) == raw.decode(errors="replace")


def test_text_that_cannot_be_written_is_a_request_error() -> None:
    made = tokenizer(byte_level())
    with pytest.raises(RequestError, match="lone surrogate"):
        made.encode("a\ud800")
    described = byte_level()
    listed = described[f"{K}tokens"]
    assert isinstance(listed, list)
    listed[listed.index(BYTE_LETTERS[0x13])] = ""
    with pytest.raises(RequestError, match="byte 0x13"):
        tokenizer(described).encode("a\x13")
    assert tokenizer(described).decode(tokenizer(described).encode("a\x14")) == "a\x14"


def naive_sentencepiece(pieces: list[str], text: str) -> list[str]:
    """Merges the best neighbours, the leftmost first, until there are none."""
    parts = [*text]
    while True:
        pairs = [(a + b, i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        known = [(pieces.index(pair), i) for pair, i in pairs if pair in pieces]
        if not known:
            return parts
        at = min(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_sentencepiece_merges_by_score() -> None:
    made = tokenizer(sentencepiece(PIECES))
    rng = random.Random(4)
    for _ in range(300):
        text = "".join(rng.choice("abhelo ") for _ in range(rng.randrange(1, 25)))
        expected = naive_sentencepiece(PIECES, "\u2581" + text.replace(" ", "\u2581"))
        ids = made.encode(text, add_bos=False)
        assert texts(made, ids) == [part.replace("\u2581", " ") for part in expected]


def test_sentencepiece_bytes_and_unknown() -> None:
    made = tokenizer(sentencepiece(PIECES))
    assert texts(made, made.encode("\u4e2d", add_bos=False)) == [" ", "\u4e2d"]
    assert made.encode("\u00e4", add_bos=False) == [260, 4 + 0xC3, 4 + 0xA4]
    lacking = ["<unk>", "\u2581", "a"]
    scores = np.zeros(3, np.float32)
    few = metadata("llama", lacking, [2, 1, 1], scores=scores, unknown_token_id=0)
    assert tokenizer(few).encode("a\u00e4\u00e4a") == [1, 2, 0, 2]
    del few[f"{K}unknown_token_id"]
    with pytest.raises(ModelError, match="neither all byte tokens nor an unknown token"):
        Tokenizer.from_metadata(few)


def test_sentencepiece_space_prefix() -> None:
    made = tokenizer(sentencepiece(PIECES))
    assert texts(made, made.encode("hello")) == ["<s>", " he", "llo"]
    assert texts(made, made.encode("a</s>he", add_bos=False)) == [" ", "a", "</s>", " he"]
    assert texts(made, made.encode("<tool>he", add_bos=False)) == [" ", "<tool>", "he"]
    assert made.decode(made.encode(" he")) == " he"
    assert made.decode(made.encode("he"), continues=True) == " he"
    bare = tokenizer(sentencepiece(PIECES, add_space_prefix=False))
    assert texts(bare, bare.encode("he", add_bos=False)) == ["he"]
    assert bare.decode(bare.encode(" he")) == " he"


def test_files_without_a_vocabulary() -> None:
    assert Tokenizer.from_metadata({}) is None
    assert Tokenizer.from_metadata({f"{K}model": "none"}) is None


def test_no_pre_tokenizer_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    described = byte_level()
    del described[f"{K}pre"]
    assert texts(tokenizer(byte_level()), tokenizer(described).encode("1234")) == ["12", "3", "4"]
    assert "no pre-tokenizer" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", "bert", "model is 'bert'; supported: gpt2, llama"),
        ("model", 7, "model is a int, not a string"),
        ("pre", "no-such", "pre is 'no-such'; supported: .*qwen2"),
        ("tokens", None, "tokens is missing"),
        ("tokens", [], "tokens is empty"),
        ("tokens", [1, 2], "tokens is not a list of strings"),
        ("tokens", ["a"], "token_type has [0-9]+ entries for 1 tokens"),
        ("token_type", None, "token_type is missing"),
        ("token_type", [1], "token_type is not an array of integers"),
        ("token_type", np.ones(3, np.float32), "token_type is not an array of integers"),
        ("token_type", np.ones((3, 3), np.int32), "token_type is not an array of integers"),
        ("token_type", np.ones(3, np.int32), "token_type has 3 entries"),
        ("merges", None, "merges is missing"),
        ("merges", ["a b", "a zz"], r"merges\[1\]: 'a zz' names a token"),
        ("merges", ["ab"], r"merges\[0\]"),
        ("merges", [""], r"merges\[0\]"),
        ("bos_token_id", -1, "bos_token_id is -1, but the file lists"),
        ("eos_token_id", 1 << 32, "eos_token_id is 4294967296"),
        ("eot_token_id", "2", "eot_token_id is a str, not a token id"),
        ("eom_token_id", True, "eom_token_id is a bool"),
        ("add_bos_token", 1, "add_bos_token is a int, not true or false"),
        ("add_bos_token", True, "there is no tokenizer.ggml.bos_token_id"),
    ],
)
def test_damaged_metadata(key: str, value: object, message: str) -> None:
    described = byte_level()
    described[K + key] = value
    if value is None:
        del described[K + key]
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_metadata(described)


def test_damaged_tokens() -> None:
    twice = metadata("gpt2", ["a", "b", "a"], [1, 1, 1], merges=[], pre="gpt-2")
    with pytest.raises(ModelError, match="'a' is both token 0 and token 2"):
        Tokenizer.from_metadata(twice)
    typed = metadata("gpt2", ["a"], [9], merges=[], pre="gpt-2")
    with pytest.raises(ModelError, match=r"token_type\[0\] is 9"):
        Tokenizer.from_metadata(typed)
    byte = metadata("gpt2", ["<0xzz>"], [BYTE], merges=[], pre="gpt-2")
    with pytest.raises(ModelError, match="typed as a byte"):
        Tokenizer.from_metadata(byte)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros(3, np.float32), "scores has 3 entries"),
        (np.zeros(261, np.int32), "scores is not an array of floats"),
        (np.full(261, np.nan, np.float32), "a score is not a number"),
        (None, "scores is missing"),
    ],
)
def test_damaged_scores(scores: object, message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        Tokenizer.from_metadata(sentencepiece(scores=scores))


def test_a_sentencepiece_vocabulary_needs_a_space() -> None:
    few = metadata("llama", ["a"], [1], scores=np.zeros(1, np.float32))
    with pytest.raises(ModelError, match="no token for the space"):
        Tokenizer.from_metadata(few)
