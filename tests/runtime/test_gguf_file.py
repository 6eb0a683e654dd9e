"""GGUF files: values and weights as the gguf package has them, one clear error for damage."""

import contextlib
import hashlib
import itertools
import os
import re
import struct
import time
import tracemalloc
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES

from gguf_maker import finish, vocabulary, write_tiny_llama
from strata_runtime.errors import ModelError
from strata_runtime.gguf_file import GgufFile

V = GGUFValueType
T = GGMLQuantizationType


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def strings(key: str, count: int, payload: bytes = b"") -> bytes:
    return pair(key, V.ARRAY, array(V.STRING, count, payload))


def entry(name: str | bytes, dims: tuple[int, ...], kind: int = T.F32, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


@dataclass(frozen=True)
class Raw:
    """A GGUF file by its bytes; the counts can lie."""

    pairs: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    pair_count: int | None = None
    tensor_count: int | None = None
    data: bytes = bytes(256)

    def encode(self) -> bytes:
        pairs = len(self.pairs) if self.pair_count is None else self.pair_count
        tensors = len(self.entries) if self.tensor_count is None else self.tensor_count
        head = self.magic + self.version + struct.pack("<QQ", tensors, pairs)
        head += b"".join(self.pairs) + b"".join(self.entries)
        return head + bytes(-len(head) % 32) + self.data


U32_ONE = struct.pack("<I", 1)
ALIGN = "general.alignment"
HUGE = 1 << 60
LONG = struct.pack("<Q", HUGE)

BROKEN: dict[str, tuple[Raw, str]] = {
    "magic": (Raw(magic=b"GGML"), r"not a GGUF file.*b'GGML'"),
    "version 1": (Raw(version=U32_ONE), r"version 1 is not supported"),
    "version 0": (Raw(version=bytes(4)), r"version 0 is not supported"),
    "big endian": (Raw(version=struct.pack(">I", 3)), r"big-endian"),
    "tensor count": (Raw(tensor_count=HUGE), rf"claims {HUGE} tensors.*byte 24"),
    "key count": (Raw(pair_count=HUGE), rf"claims {HUGE} metadata keys.*byte 24"),
    "key too long": (Raw([pair("k" * 65536, V.UINT32, U32_ONE)]), r"key 0 .*65536 bytes"),
    "key past the end": (Raw([LONG]), rf"key 0 at byte 32 needs {HUGE} bytes.*download it again"),
    "empty key": (Raw([pair("", V.UINT32, U32_ONE)]), r"key 0 at byte 24 is empty"),
    "key not UTF-8": (Raw([pair(b"a\xff", V.UINT32, U32_ONE)]), r"key 0 at byte 32 is not UTF-8"),
    "key twice": (Raw([pair("k\n", V.UINT32, U32_ONE)] * 2), r"key 'k\\n' stands twice"),
    "value type": (Raw([pair("k", 13, U32_ONE)]), r"value of 'k' has the unknown type 13"),
    "item type": (Raw([pair("k", V.ARRAY, array(99, 1))]), r"array 'k' has the unknown type 99"),
    "string past the end": (Raw([pair("k", V.STRING, LONG)]), rf"'k' at byte 45 needs {HUGE} b"),
    "string not UTF-8": (Raw([pair("k", V.STRING, text(b"ab\xc3"))]), r"'k' at byte 45 .*UTF-8"),
    "bool": (Raw([pair("k", V.BOOL, b"\2")]), r"'k' at byte 37 is 2, not a bool"),
    "bool in array": (Raw([pair("k", V.ARRAY, array(V.BOOL, 2, b"\1\7"))]), r"item 1 .*'k'"),
    "nested array": (Raw([pair("k", V.ARRAY, array(V.ARRAY, 1))]), r"'k' is an array of arrays"),
    "array past the end": (Raw([pair("k", V.ARRAY, array(V.INT64, HUGE))]), r"array 'k' of"),
    "string array length": (Raw([strings("k", HUGE)]), r"array 'k' of"),
    "string array item": (Raw([strings("k", 2, text("a") + LONG)]), r"string 1 .*'k' at byte 58"),
    "string array end": (Raw([strings("k", 2, text("a" * 35))], data=b""), r"string 1 .*'k' at b"),
    "string array not UTF-8": (Raw([strings("k", 1, text(b"\xff"))]), r"string 0 .*'k'.* UTF-8"),
    "too many strings": (Raw([strings("k", 1 << 22)], data=bytes(1 << 25)), r"'k' of 4194304 str"),
    "alignment 12": (Raw([pair(ALIGN, V.UINT8, b"\x0c")]), rf"{ALIGN} is 12"),
    "alignment 2**31": (Raw([pair(ALIGN, V.UINT32, b"\0\0\0\x80")]), rf"{ALIGN} is 2147483648"),
    "alignment a string": (Raw([pair(ALIGN, V.STRING, text("32"))]), rf"{ALIGN} is of type str"),
    "tensor name empty": (Raw(entries=[entry("", (4,))]), r"name of tensor 0 at byte 24 is empty"),
    "tensor name too long": (Raw(entries=[entry("t" * 65, (4,))]), r"name of tensor 0 .*65 bytes"),
    "tensor name not UTF-8": (Raw(entries=[entry(b"\x80", (4,))]), r"name of tensor 0 .*UTF-8"),
    "tensor twice": (Raw(entries=[entry("t", (4,))] * 2), r"tensor 't' stands twice"),
    "no dimensions": (Raw(entries=[entry("t", ())]), r"tensor 't' has 0 dimensions"),
    "five dimensions": (Raw(entries=[entry("t", (1,) * 5)]), r"tensor 't' has 5 dimensions"),
    "zero dimension": (Raw(entries=[entry("t", (4, 0))]), r"'t' has a dimension that is zero"),
    "overflow": (Raw(entries=[entry("t", (1 << 32, 1 << 32))]), r"'t' has too many elements"),
    "unknown type": (Raw(entries=[entry("t", (32,), 200)]), r"'t' has the unknown type 200"),
    "removed type": (Raw(entries=[entry("t", (32,), 31)]), r"'t' has type 31, which ggml removed"),
    "broken blocks": (Raw(entries=[entry("t", (33, 2), T.Q8_0)]), r"'t' has rows of 33 .*Q8_0"),
    "offset not aligned": (Raw(entries=[entry("t", (4,), T.F32, 8)]), r"'t' has offset 8"),
    "tensor past the end": (Raw(entries=[entry("t", (99,))]), r"'t' ends at byte 460.*cut off"),
    "offset past the end": (Raw(entries=[entry("t", (4,), T.F32, HUGE)]), r"'t' ends at byte"),
    "overlap": (Raw(entries=[entry("b", (4,), T.F32, 32), entry("a", (9,))]), r"'a' and 'b' over"),
}


def opened(folder: Path, content: bytes) -> GgufFile:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return GgufFile.open(path)


def open_error(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        GgufFile.open(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and message.isprintable()
    return message


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_one_clear_line(case: str, tmp_path: Path) -> None:
    raw, pattern = BROKEN[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.encode())
    tracemalloc.start()
    message = open_error(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.startswith(f"{path}: ")
    assert re.search(pattern, message), message
    assert peak < 5 << 20


@pytest.mark.parametrize("size", [1, 4, 7, 8, 16, 23])
def test_shorter_than_the_fixed_header(size: int, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(Raw().encode()[:size])
    assert re.search(r"short\.gguf: the .* at byte \d+ needs \d bytes", open_error(path))


def test_file_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.gguf").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "empty.gguf: the file is empty" in open_error(tmp_path / "empty.gguf")
    assert "pipe.gguf: is not a regular file" in open_error(tmp_path / "pipe.gguf")
    assert "is a folder" in open_error(tmp_path)
    assert "none.gguf: cannot be read: No such file" in open_error(tmp_path / "none.gguf")
    assert "cannot be read" in open_error(tmp_path / "a\0b\n.gguf")
    path = write_tiny_llama(tmp_path / "model.gguf")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert open_error(path) == f"{path}: cannot be read: Permission denied"


def read_everything(path: Path) -> bool:
    """True when the file was accepted; whatever is read then works or raises ModelError."""
    try:
        file = GgufFile.open(path)
    except ModelError as error:
        assert str(error).startswith(f"{path}: ") and str(error).isprintable()
        return False
    for key, kind in itertools.product(file.metadata, ("str", "int", "float", "bool")):
        for getter in (f"get_{kind}", f"get_{kind}_array"):
            with contextlib.suppress(ModelError):
                assert getattr(file, getter)(key) is not None
    for name, info in file.tensors.items():
        with contextlib.suppress(ModelError):
            assert file.dequantize(name).shape == info.shape
    return True


def test_random_damage(tmp_path: Path) -> None:
    source = write_tiny_llama(
        tmp_path / "good.gguf", layers=1, embedding=32, ff=32, ftype=T.Q4_1, with_vocab=True
    )
    content, header_end = source.read_bytes(), GgufFile.open(source).header.data_start
    rng, accepted = np.random.default_rng(7), 0
    path = tmp_path / "bad.gguf"
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trial in range(1000):
            bad = np.frombuffer(content, np.uint8).copy()
            flips = rng.integers(0, header_end if trial % 4 else bad.size, 1 + trial % 3)
            bad[flips] ^= (1 << rng.integers(0, 8, flips.size)).astype(np.uint8)
            end = rng.integers(0, bad.size) if trial % 5 == 0 else bad.size
            path.write_bytes(bad[:end].tobytes())
            start = time.perf_counter()
            accepted += read_everything(path)
            assert time.perf_counter() - start < 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 100 < accepted < 900
    assert peak < 50 << 20


def test_values_and_weights_equal_the_gguf_package(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "model.gguf", ftype=T.BF16, tied=False, with_vocab=True)
    file, reader = GgufFile.open(path), GGUFReader(path)
    expected = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    found = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in file.metadata.items()}
    assert found == expected
    assert [t.name for t in reader.tensors] == list(file.tensors)
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert (info.ggml_type, info.offset) == (tensor.tensor_type, tensor.data_offset)
        assert (info.shape, info.nbytes) == (tuple(tensor.shape[::-1].tolist()), tensor.n_bytes)
        assert file.raw(tensor.name).tobytes() == tensor.data.tobytes()
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        assert_same_bits(file.dequantize(tensor.name), values)
    assert file.header.version == 3 and file.path == path
    assert file.header.data_start == reader.data_offset and file.header.alignment == 32
    assert file.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()


SCALARS: list[tuple[GGUFValueType, str | float]] = [
    *((V.UINT8, 255), (V.UINT16, 65535), (V.UINT32, 2**32 - 1), (V.UINT64, 2**64 - 1)),
    *((V.INT8, -128), (V.INT16, -32768), (V.INT32, -(2**31)), (V.INT64, -(2**63))),
    *((V.FLOAT32, 0.15625), (V.FLOAT64, 0.1), (V.BOOL, True), (V.BOOL, False)),
    *((V.STRING, "a\u2581\n"), (V.STRING, "")),
]


@pytest.mark.parametrize(("kind", "value"), SCALARS)
def test_every_value_type_round_trips(kind: V, value: str | float, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "x")
    writer.add_key_value("k", value, kind)
    writer.add_key_value("array", [value] * 3, V.ARRAY, kind)
    finish(writer)
    metadata = GgufFile.open(tmp_path / "model.gguf").metadata
    assert metadata["k"] == value and type(metadata["k"]) is type(value)
    items = metadata["array"]
    assert (items.tolist() if isinstance(items, np.ndarray) else items) == [value] * 3
    assert not isinstance(items, np.ndarray) or not items.flags.writeable


def test_version_2_empty_arrays_and_tokens_that_are_not_utf8(tmp_path: Path) -> None:
    pairs = [strings("tokenizer.ggml.tokens", 2, text(b"\xff") + text("a"))]
    pairs += [pair("none", V.ARRAY, array(V.INT32, 0)), strings("no", 0)]
    raw = Raw(pairs, [entry("t", (2, 3))], version=b"\2\0\0\0")
    file = opened(tmp_path, raw.encode())
    assert file.header.version == 2 and file.tensors["t"].shape == (3, 2)
    assert file.get_str_array("tokenizer.ggml.tokens") == ["\udcff", "a"]
    assert file.get_int_array("none").size == 0 and file.get_str_array("no") == []


def assert_same_bits(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    assert found.dtype == np.float32 and found.flags.c_contiguous and found.flags.writeable
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def has_float32_form(kind: T) -> bool:
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def one_tensor(path: Path, kind: T, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    """Writes tensor t of (rows, columns): quantised noise where gguf can, else random bytes."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(kind)
    try:
        values = rng.standard_normal((rows, columns), np.float32)
        raw = quants.quantize(values, kind).view(np.uint8)
    except NotImplementedError:
        raw = rng.integers(0, 256, (rows, columns // block * block_bytes), np.uint8)
    writer = GGUFWriter(path, "x")
    writer.add_tensor("t", raw, raw_dtype=kind)
    finish(writer)
    return raw


@pytest.mark.parametrize("kind", [t for t in T if has_float32_form(t)], ids=lambda t: t.name)
def test_every_type_equals_the_gguf_package(kind: T, tmp_path: Path) -> None:
    # 307,200 weights: nine whole groups and a part of one.
    raw = one_tensor(tmp_path / "model.gguf", kind, 400, 768)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, kind)
    file = GgufFile.open(tmp_path / "model.gguf")
    assert np.array_equal(file.raw("t"), raw.reshape(-1)) and not file.raw("t").flags.writeable
    assert_same_bits(file.dequantize("t"), expected)


@pytest.mark.parametrize("kind", [t for t in T if not has_float32_form(t)], ids=lambda t: t.name)
def test_type_without_a_float32_form_is_named(kind: T, tmp_path: Path) -> None:
    one_tensor(tmp_path / "model.gguf", kind, 2, 256)
    file = GgufFile.open(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=rf"model\.gguf: tensor 't' has type {kind.name}, "):
        file.dequantize("t")


def test_wrong_out_and_missing_tensor(tmp_path: Path) -> None:
    file = GgufFile.open(write_tiny_llama(tmp_path / "model.gguf"))
    for out in (np.empty((48, 47), np.float32), np.empty((48, 96), np.float32)[:, ::2]):
        with pytest.raises(ValueError, match=r"float32 of shape \(48, 48\)"):
            file.dequantize_into("blk.0.attn_q.weight", out)
    with pytest.raises(ModelError, match=r"'blk\.0\.attn_q' is missing; did you mean 'blk\.0\."):
        file.raw("blk.0.attn_q")


def test_dequantize_into_needs_little_extra_memory(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", layers=0, embedding=1024, vocab=4096, ftype=T.F16)
    file, out = GgufFile.open(path), np.empty((4096, 1024), np.float32)
    tracemalloc.start()
    file.dequantize_into("token_embd.weight", out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < peak < 4 << 20


def typed(folder: Path) -> GgufFile:
    nan, big = struct.pack("<I", 0x7FA00000), struct.pack("<Q", 1 << 63)
    pairs = [
        *(pair("text", V.STRING, text("abc")), pair("whole", V.UINT8, b"\7")),
        pair("real", V.FLOAT32, struct.pack("<f", 0.5)),
        pair("whole.real", V.FLOAT32, struct.pack("<f", 8)),
        *(pair("nan", V.FLOAT32, nan), pair("flag", V.BOOL, b"\1")),
        strings("texts", 2, text("a") + text("b")),
        pair("wholes", V.ARRAY, array(V.INT16, 2, struct.pack("<hh", -1, 2))),
        pair("reals", V.ARRAY, array(V.FLOAT32, 2, struct.pack("<ff", 0.5, 2))),
        pair("nans", V.ARRAY, array(V.FLOAT32, 1, nan)),
        pair("bigs", V.ARRAY, array(V.UINT64, 1, big)),
        pair("flags", V.ARRAY, array(V.BOOL, 2, b"\1\0")),
    ]
    return opened(folder, Raw(pairs).encode())


def test_typed_getters(tmp_path: Path) -> None:
    file = typed(tmp_path)
    assert file.get_str("text") == "abc" and file.get_bool("flag") is True
    assert (file.get_int("whole"), file.get_int("whole.real")) == (7, 8)
    assert (file.get_float("real"), file.get_float("whole")) == (0.5, 7.0)
    assert type(file.get_float("whole")) is float and type(file.get_int("whole.real")) is int
    assert file.get_str_array("texts") == ["a", "b"]
    assert file.get_int_array("wholes").tolist() == [-1, 2]
    assert file.get_float_array("reals").tolist() == [0.5, 2.0]
    assert file.get_float_array("wholes").tolist() == [-1.0, 2.0]
    assert file.get_bool_array("flags").tolist() == [True, False]
    assert file.get_int("absent", 3) == 3 and file.get_str("absent", default=None) is None


@pytest.mark.parametrize(
    ("getter", "key", "pattern"),
    [
        ("get_str", "whole", r"'whole' must be a string, but is the int 7"),
        ("get_int", "flag", r"'flag' must be a whole number, but is the bool True"),
        ("get_int", "real", r"'real' must be a whole number, but is the float 0\.5"),
        ("get_int", "nan", r"'nan' must be a whole number, but is the float nan"),
        ("get_float", "nan", r"'nan' must be a finite number"),
        ("get_float", "text", r"but is the string 'abc'"),
        ("get_bool", "whole", r"'whole' must be a bool"),
        ("get_str_array", "text", r"'text' must be an array of strings"),
        ("get_int_array", "texts", r"must be an array of integers.*but is an array of 2 strings"),
        ("get_int_array", "reals", r"but is an array of 2 values of type float32"),
        ("get_int_array", "flags", r"type bool"),
        ("get_int_array", "bigs", r"type uint64"),
        ("get_float_array", "nans", r"'nans' must be an array of finite numbers"),
        ("get_bool_array", "wholes", r"'wholes' must be an array of bools"),
        ("get_int", "wole", r"metadata key 'wole' is missing; did you mean 'whole'\?"),
        ("get_str", "zzz", r"metadata key 'zzz' is missing$"),
    ],
)
def test_getter_errors(getter: str, key: str, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"^.*model\.gguf: .*{pattern}"):
        getattr(typed(tmp_path), getter)(key)


def test_tiny_llama_is_reproducible_and_complete(tmp_path: Path) -> None:
    first = write_tiny_llama(tmp_path / "a.gguf", head_dim=16, ftype=T.Q8_0, embedding=64)
    second = write_tiny_llama(tmp_path / "b.gguf", head_dim=16, ftype=T.Q8_0, embedding=64)
    assert first.read_bytes() == second.read_bytes()
    file = GgufFile.open(first)
    assert len(file.tensors) == 2 + 2 * 9 and file.get_int("llama.attention.key_length") == 16
    types = {name: info.ggml_type for name, info in file.tensors.items()}
    assert types["blk.1.ffn_up.weight"] == T.Q8_0 and types["blk.1.ffn_down.weight"] == T.F32
    named = GgufFile.open(write_tiny_llama(tmp_path / "c.gguf", with_vocab=True))
    assert named.get_str_array("tokenizer.ggml.tokens") == vocabulary()
    assert named.tensors["token_embd.weight"].shape == (len(set(vocabulary())), 48)
