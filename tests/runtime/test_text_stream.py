"""Streamed text: the same as decoding at once, whole characters, nothing of a stop string."""

import random
from collections.abc import Sequence

import pytest

from small_vocabularies import byte_level, random_text, sentencepiece, tokenizer
from strata_runtime.errors import RequestError
from strata_runtime.text_stream import TextStream
from strata_runtime.tokenizer import Tokenizer

MADE = tokenizer(byte_level())


def byte_ids(made: Tokenizer, data: bytes) -> list[int]:
    """One token for each byte."""
    by_byte = {made.token_bytes(token): token for token in range(made.vocab_size)}
    return [by_byte[bytes([byte])] for byte in data]


def random_cut(rng: random.Random, made: Tokenizer, text: str) -> list[int]:
    """Tokens for `text`, some of them single bytes."""
    ids: list[int] = []
    while text:
        size = rng.randrange(1, 9)
        part, text = text[:size], text[size:]
        whole = made.encode(part, special=False, add_bos=False)
        ids += whole if rng.random() < 0.5 else byte_ids(made, part.encode())
    return ids


def stopped_text(text: str, stop: Sequence[str]) -> str:
    """Character by character: the text before the first stop string that is complete."""
    for end in range(len(text) + 1):
        ending = [string for string in stop if text[:end].endswith(string)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


def test_streaming_equals_decoding() -> None:
    rng = random.Random(1)
    for _ in range(200):
        text = random_text(rng, 10)
        stream = TextStream(MADE)
        shown = [stream.push(token) for token in random_cut(rng, MADE, text)]
        for size in range(len(shown)):
            assert text.startswith("".join(shown[:size]))
        assert "".join(shown) == stream.text == text
        assert stream.finish() == ""


def test_invalid_bytes_equal_decoding_and_never_raise() -> None:
    rng = random.Random(2)
    for described in (byte_level(), sentencepiece(["a", "\u2581a"])):
        made = tokenizer(described)
        for _ in range(300):
            ids = [rng.randrange(made.vocab_size) for _ in range(12)]
            stream = TextStream(made)
            shown = "".join(stream.push(token) for token in ids)
            assert shown + stream.finish() == stream.text == made.decode(ids)


def test_a_character_is_shown_when_it_is_whole() -> None:
    stream = TextStream(MADE)
    shown = [stream.push(token) for token in byte_ids(MADE, "a\U0001f600\u00e4".encode())]
    assert shown == ["a", "", "", "", "\U0001f600", "", "\u00e4"]


def test_invalid_bytes_are_shown_as_soon_as_they_are_certain() -> None:
    stream = TextStream(MADE)
    shown = [stream.push(token) for token in byte_ids(MADE, b"\xff\xf0\x80\xe4\xb8a\xe4\xb8")]
    assert shown == ["\ufffd", "", "\ufffd\ufffd", "", "", "\ufffda", "", ""]
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (["b"], "abc", "a"),
        (["bcd"], "abce", "abce"),
        (["aab"], "aaab", "a"),
        (["abc", "ab"], "xabc", "x"),
        (["abcd", "bc"], "abcd", "a"),
        (["bc", "abc"], "xabc", "x"),
        (["abac"], "ababac", "ab"),
        (["\u4e2d\u6587"], "a\u4e2d\u4e2d\u6587", "a\u4e2d"),
        (["\U0001f600"], "hello\U0001f600", "hello"),
        (["\ufffd"], "a\ufffdb", "a"),
        (["hello world"], "hello world", ""),
        (["\n\n"], "a\n\n\n", "a"),
        (["nothing"], "", ""),
    ],
)
def test_stop_strings(stop: list[str], text: str, expected: str) -> None:
    for ids in (MADE.encode(text), byte_ids(MADE, text.encode())):
        stream = TextStream(MADE, stop)
        shown = "".join(stream.push(token) for token in ids)
        assert stream.stopped == (expected != text)
        assert shown + stream.finish() == stream.text == expected


def test_random_stop_strings() -> None:
    rng = random.Random(3)
    letters = "aab\u4e2d"
    for _ in range(500):
        text = "".join(rng.choices(letters, k=rng.randrange(16)))
        stop = ["".join(rng.choices(letters, k=rng.randrange(1, 5))) for _ in range(3)]
        expected = stopped_text(text, stop)
        stream = TextStream(MADE, stop)
        shown = ""
        for token in random_cut(rng, MADE, text):
            shown += stream.push(token)
            assert expected.startswith(shown)
        assert shown + stream.finish() == stream.text == expected
        assert stream.stopped == (expected != text)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    stream = TextStream(MADE, ["bcd", "cx"])
    shown = [stream.push(token) for token in byte_ids(MADE, b"abcabcc")]
    assert shown == ["a", "", "", "bca", "", "", "bc"]
    assert stream.finish() == "c"
    assert not stream.stopped


def test_nothing_is_shown_after_the_end() -> None:
    stream = TextStream(MADE, ["b"])
    assert [stream.push(token) for token in MADE.encode("abc")] == ["a"]
    stream = TextStream(MADE, ["b"])
    assert [stream.push(token) for token in byte_ids(MADE, b"abac")] == ["a", "", "", ""]
    assert (stream.stopped, stream.finish(), stream.text) == (True, "", "a")
    ended = TextStream(MADE, ["bc"])
    assert [ended.push(token) for token in byte_ids(MADE, b"ab")] == ["a", ""]
    assert [ended.finish(), ended.finish(), ended.push(MADE.encode("c")[0])] == ["b", "", ""]
    assert (ended.stopped, ended.text) == (False, "ab")


def test_control_tokens_show_nothing_and_may_stop() -> None:
    stream = TextStream(MADE, ["<|im_end|>", "ab"])
    assert [stream.push(token) for token in (1, *MADE.encode("a"))] == ["", ""]
    assert (stream.push(2), stream.stopped, stream.text) == ("a", True, "a")
    spelled = TextStream(MADE, ["<|im_end|>"])
    for token in MADE.encode("a<|im_end|>b", special=False):
        spelled.push(token)
    assert (spelled.stopped, spelled.text) == (True, "a")


def test_the_space_before_a_sentencepiece_text() -> None:
    made = tokenizer(sentencepiece(["a", "\u2581a"]))
    ids = made.encode("a a", add_bos=False)
    for continues, expected in ((False, "a a"), (True, " a a")):
        stream = TextStream(made, continues=continues)
        assert "".join(stream.push(token) for token in [1, *ids]) == expected


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        TextStream(MADE, ["a", ""])
