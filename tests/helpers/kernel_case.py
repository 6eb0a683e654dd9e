"""Random bound arguments for any kernel, tables by field names, and runs of the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from strata_kernels.regions import touched
from strata_kernels.spec import CHUNK, Arg, KernelSpec, Region
from strata_kernels.table import FLOAT_FIELDS, LAYOUT, ROW_LIMIT, Ints, TableView

DTYPES = {"f32": torch.float32, "f16": torch.float16, "i32": torch.int32, "i64": torch.int64}
SLOTS = 8  #: of every cell buffer; random tables write to the lower half and copy from the upper
CONTEXTS, MASKS, BIASES, HANDOFFS = 3, 3, 3, 160
GUARD = 64  #: elements on both sides of every argument that nobody may touch
GARBAGE = 0x7F7F7F7F  #: what inert rows and segments may hold, where a test is after that
POISON_INT = 0x7FABCDEF

Fields = Mapping[str, float | Sequence[float]]


@dataclass(frozen=True)
class Segment:
    """Rows of one slot from position `start` on; `gap` inert rows stand before them.

    `fields` holds row fields, one value for all rows or one each; `depth` and `epoch` are 0.
    """

    slot: int
    start: int
    tokens: Sequence[int] = (1,)
    gap: int = 0
    fields: Fields = field(default_factory=dict)


def row_defaults(slot: int, row: int) -> dict[str, float]:
    """Fields that change nothing."""
    none = dict.fromkeys(("saved_row", "mask", "bias", "forced"), -1.0)
    where = {"slot": slot, "state_in": slot, "state_out": slot, "handoff_row": row}
    return {**none, **where, "top_p": 1.0, "repeat_penalty": 1.0}


def make_table(rows: int, segments: Sequence[Segment], inert: int = -1, **header: int) -> Ints:
    """The int32 words of a program of `rows` rows.

    Rows without a segment are inert: their slot is -1, every other field is `inert`.
    """
    words = np.full(LAYOUT.words(rows), inert, np.int32)
    words[: len(LAYOUT.header)] = 0
    _put(words, 0, LAYOUT.header, {"rows": rows, "segments": len(segments), **header})
    for row in range(rows):
        _put(words, row_start(row), LAYOUT.row, {"slot": -1})
    first = 0
    for i, segment in enumerate(segments):
        first += segment.gap
        start = len(LAYOUT.header) + i * len(LAYOUT.segment)
        count = len(segment.tokens)
        known = {"slot": segment.slot, "first_row": first, "count": count, "first_saved_row": first}
        _put(words, start, LAYOUT.segment, {**dict.fromkeys(LAYOUT.segment, 0), **known})
        _put_rows(words, segment, first)
        first += count
    assert first <= rows
    return words


def row_start(row: int) -> int:
    """Index of the first word of a row."""
    return LAYOUT.rows_start + row * len(LAYOUT.row)


def set_row(words: Ints, row: int, **values: float) -> None:
    """Overwrite fields of one row."""
    _put(words, row_start(row), LAYOUT.row, values)


def _put_rows(words: Ints, segment: Segment, first: int) -> None:
    for i, token in enumerate(segment.tokens):
        row = first + i
        own = {k: v[i] if isinstance(v, Sequence) else v for k, v in segment.fields.items()}
        place = {"position": segment.start + i, "token": token, "first_row": first, "index": i}
        zero = dict.fromkeys(LAYOUT.row, 0.0)
        set_row(words, row, **{**zero, **row_defaults(segment.slot, row), **place, **own})


def _put(words: Ints, start: int, names: tuple[str, ...], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        bits = np.float32(value).view(np.int32) if name in FLOAT_FIELDS else np.int32(int(value))
        words[start + names.index(name)] = bits


def random_table(rng: np.random.Generator, rows: int, limit: int, vocab: int) -> Ints:
    """Segments of random slots, lengths and gaps; positions below `limit`; every field in range."""
    segments, left = [], rows
    for slot in rng.permutation(SLOTS // 2).tolist():
        gap = int(rng.integers(0, 2))
        count = int(rng.integers(1, max(2, rows // 2 + 1)))
        if count + gap > left:
            continue
        left -= count + gap
        start = int(rng.integers(0, limit - count + 1))
        tokens = rng.integers(0, vocab, count).tolist()
        segments.append(Segment(slot, start, tokens, gap, _random_fields(rng, count)))
    return make_table(rows, segments, context=int(rng.integers(0, CONTEXTS)))


def _random_fields(rng: np.random.Generator, count: int) -> Fields:
    """Sampling, side inputs and places, one value a row."""
    return {
        "state_in": rng.integers(SLOTS // 2, SLOTS, count).tolist(),
        "handoff_row": (rng.permutation(HANDOFFS // SLOTS)[:count] * SLOTS).tolist(),
        "mask": rng.integers(-1, MASKS, count).tolist(),
        "bias": rng.integers(-1, BIASES, count).tolist(),
        "temperature": rng.choice([0.0, 0.7, 1.5], count).tolist(),
        "top_k": rng.choice([0, 5, 20], count).tolist(),
        "top_p": rng.choice([0.5, 0.9, 1.0], count).tolist(),
        "min_p": rng.choice([0.0, 0.1], count).tolist(),
        "repeat_penalty": rng.choice([1.0, 1.3], count).tolist(),
        "presence_penalty": rng.choice([0.0, 0.5], count).tolist(),
        "frequency_penalty": rng.choice([0.0, 0.25], count).tolist(),
        "penalty_last": rng.choice([0, 3, 100], count).tolist(),
        "seed_low": rng.integers(-(1 << 31), 1 << 31, count).tolist(),
        "seed_high": rng.integers(-(1 << 31), 1 << 31, count).tolist(),
    }


@dataclass(frozen=True)
class Case:
    """A kernel with everything bound; `stores` are the arguments with their guard bands."""

    spec: KernelSpec[Any]
    params: Any
    table: Ints
    tensors: dict[str, torch.Tensor]
    stores: dict[str, torch.Tensor]

    @property
    def args(self) -> dict[str, Arg]:
        """The declared arguments by name."""
        return {a.name: a for a in self.spec.args(self.params)}

    def __getitem__(self, name: str) -> torch.Tensor:
        """One bound argument."""
        return self.tensors[name]

    def run(self) -> Case:
        """Run the reference once; the guard bands must survive."""
        before = {name: bits(_bands(store)) for name, store in self.stores.items()}
        with torch.inference_mode():
            self.spec.reference(self.params, self.tensors)
        assert before == {name: bits(_bands(store)) for name, store in self.stores.items()}
        return self

    def mask(self, name: str, region: Region, table: Ints | None = None) -> torch.Tensor:
        """Elements of an argument that `region` names, for this case's table or another one."""
        words = self.table if table is None else table
        rows = (len(words) - LAYOUT.rows_start) // len(LAYOUT.row)
        counter = int(self.tensors["counter"][0]) if "counter" in self.tensors else 0
        shape = tuple(self.tensors[name].shape)
        return torch.from_numpy(touched(region, shape, TableView(words, rows), counter))


def bind(
    spec: KernelSpec[Any],
    params: Any,
    table: Ints,
    values: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
) -> Case:
    """Bind every argument: the table, `values` where given, else random; outputs hold poison."""
    rng = np.random.default_rng(seed)
    tensors, stores = {}, {}
    for arg in spec.args(params):
        if values and arg.name in values:
            value = values[arg.name]
        elif arg.name == "table" and arg.reads:
            value = torch.from_numpy(table)
        elif arg.reads:
            value = random_values(rng, arg, params)
        else:
            value = poison_like(torch.empty(extent(arg, params), dtype=DTYPES[arg.dtype]))
        stores[arg.name], tensors[arg.name] = guarded(value.to(DTYPES[arg.dtype]))
        wanted = extent(arg, params)
        assert len(value.shape) == len(wanted) and tuple(value.shape[1:]) == wanted[1:], arg.name
    return Case(spec, params, table, tensors, stores)


def extent(arg: Arg, params: Any) -> tuple[int, ...]:
    """The argument's shape, with a size of its own for a leading -1."""
    if arg.shape[0] != -1:
        return arg.shape
    region = arg.reads or arg.writes
    first = {
        Region.POSITION: getattr(params, "chunks", 1) * CHUNK,
        Region.HANDOFF: HANDOFFS,
        Region.CONTEXT: CONTEXTS,
        Region.MASK: MASKS,
        Region.BIAS: BIASES,
    }
    return (first.get(region, SLOTS) if region else SLOTS, *arg.shape[1:])


def random_values(rng: np.random.Generator, arg: Arg, params: Any) -> torch.Tensor:
    """Normal floats; token ids for int32, except masks of bits; any int64; a small counter."""
    shape, dtype = extent(arg, params), DTYPES[arg.dtype]
    if dtype.is_floating_point:
        return torch.from_numpy(rng.standard_normal(shape, np.float32)).to(dtype)
    if arg.dtype == "i32" and arg.name != "mask":
        return torch.from_numpy(rng.integers(0, getattr(params, "vocab", 3), shape, np.int32))
    info = torch.iinfo(dtype)
    return torch.from_numpy(rng.integers(info.min, info.max, shape, np.int64)).to(dtype)


def guarded(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned store, and the copy of `value` that stands between its guard bands."""
    store = poison_like(value.new_empty(value.numel() + 2 * GUARD))
    inside = store[GUARD : GUARD + value.numel()].view(value.shape)
    inside.copy_(value)
    return store, inside


def poison_like(value: torch.Tensor) -> torch.Tensor:
    """NaN, or a huge integer, in every element."""
    return torch.full_like(value, torch.nan if value.is_floating_point() else POISON_INT)


def _bands(store: torch.Tensor) -> torch.Tensor:
    return torch.cat([store[:GUARD], store[-GUARD:]])


def bits(value: torch.Tensor) -> bytes:
    """The bytes of a tensor: what must be equal where results are equal."""
    return value.contiguous().numpy().tobytes()


def error(actual: torch.Tensor, expected: np.typing.ArrayLike) -> float:
    """The largest difference, relative to the largest expected magnitude of its last axis."""
    wanted = np.asarray(expected, np.float64)
    scale = np.abs(wanted).max(-1, keepdims=True)
    return float((np.abs(actual.double().numpy() - wanted) / scale).max())


__all__ = ["ROW_LIMIT", "Case", "Segment", "bind", "bits", "error", "make_table", "random_table"]
