"""Records to JSON and back: nothing is lost, and every misfit is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gguf_maker
from replayer import compile_bundle
from strata_runtime.bundle_format import Buffer, Manifest, Program, Rotation
from strata_runtime.bundle_load import Bundle
from strata_runtime.errors import BundleError
from strata_runtime.records import decode, encode


@dataclass(frozen=True)
class Inner:
    """Plain values, optional values, tuples of both sorts."""

    count: int
    ratio: float
    name: str
    flag: bool
    maybe: int | None
    many: tuple[int, ...]
    pair: tuple[str, float]


@dataclass(frozen=True)
class Outer:
    """Records within records, tuples and mappings."""

    inner: Inner
    listed: tuple[Inner, ...]
    named: Mapping[str, Inner]
    free: Mapping[str, Any]
    other: Inner | None


INNER = Inner(3, 0.1, "ä\n", True, None, (1, 2), ("a", 2.0))
OUTER = Outer(INNER, (INNER, INNER), {"x": INNER}, {"a": [1, {"b": None}]}, None)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("records")
    return compile_bundle(folder, gguf_maker.write_tiny_llama(folder / "m.gguf"), stages=2)


def through_json(value: object) -> Any:
    """What a reader of the file gets."""
    return json.loads(json.dumps(encode(value)))


def test_a_record_comes_back() -> None:
    assert decode(Outer, through_json(OUTER), "file") == OUTER
    assert hash(decode(Inner, through_json(INNER), "file")) == hash(INNER)


def test_a_manifest_comes_back(bundle: Bundle) -> None:
    assert decode(Manifest, through_json(bundle.manifest), "m") == bundle.manifest
    assert len(bundle.manifest.memory["cpu"].buffers) > 20


def test_programs_come_back(bundle: Bundle) -> None:
    for program in bundle.programs.values():
        assert decode(Program, through_json(program), "p") == program


def test_floats_come_back_to_the_bit() -> None:
    rotation = Rotation(base=10000.1, dims=2, scale=1 / 3, factors="rope_freqs.weight")
    buffer = Buffer("0/weights", 0, 16, "f32", (2, 1, 2), None, rotation)
    assert decode(Buffer, through_json(buffer), "b") == buffer


def test_a_whole_number_is_a_float_where_one_is_expected() -> None:
    found = decode(Inner, {**encode(INNER), "ratio": 2}, "file")
    assert (found.ratio, type(found.ratio)) == (2.0, float)


def test_fields_may_stand_in_any_order() -> None:
    assert decode(Inner, dict(reversed(encode(INNER).items())), "file") == INNER


def misfit(kind: type, value: object, message: str) -> None:
    """Decoding fails with exactly this message."""
    with pytest.raises(BundleError) as caught:
        decode(kind, value, "file")
    assert str(caught.value) == f"file: {message}; compile again"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", "3", "count: str, expected int"),
        ("count", 3.0, "count: float, expected int"),
        ("count", True, "count: bool, expected int"),
        ("count", None, "count: NoneType, expected int"),
        ("ratio", "1", "ratio: str, expected float"),
        ("ratio", False, "ratio: bool, expected float"),
        ("name", 1, "name: int, expected str"),
        ("flag", 1, "flag: int, expected bool"),
        ("maybe", "1", "maybe: str, expected int"),
        ("many", 1, "many: int, expected list"),
        ("many", {"0": 1}, "many: dict, expected list"),
        ("many", [1, "2"], "many.1: str, expected int"),
        ("pair", ["a"], "pair: 1 items, expected 2"),
        ("pair", ["a", 1.0, 2], "pair: 3 items, expected 2"),
        ("pair", [1, 1.0], "pair.0: int, expected str"),
    ],
)
def test_plain_misfits(name: str, value: object, message: str) -> None:
    misfit(Inner, {**encode(INNER), name: value}, message)


Change = Callable[[Any], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("inner"), "inner missing"),
        (lambda v: [v.pop("inner"), v.pop("free")], "free, inner missing"),
        (lambda v: v.update(x=1, y=2), "unknown x, y"),
        (lambda v: v.update(inner=None), "inner: NoneType, expected dict"),
        (lambda v: v["inner"].pop("flag"), "inner: flag missing"),
        (lambda v: v["listed"][1].update(z=1), "listed.1: unknown z"),
        (lambda v: v["listed"][1]["many"].append([]), "listed.1.many.2: list, expected int"),
        (lambda v: v["named"]["x"].update(count=None), "named.x.count: NoneType, expected int"),
        (lambda v: v["named"].update(y=[]), "named.y: list, expected dict"),
        (lambda v: v.update(named=[]), "named: list, expected dict"),
        (lambda v: v.update(free=[]), "free: list, expected dict"),
        (lambda v: v.update(other={}), "other: " + ", ".join(sorted(encode(INNER))) + " missing"),
    ],
)
def test_nested_misfits(change: Change, message: str) -> None:
    value = through_json(OUTER)
    change(value)
    misfit(Outer, value, message)


@pytest.mark.parametrize("value", [None, [], 3, "text"])
def test_no_record_at_all(value: object) -> None:
    misfit(Inner, value, f"{type(value).__name__}, expected dict")


def test_a_number_that_no_float_can_hold() -> None:
    with pytest.raises(BundleError, match="ratio"):
        decode(Inner, {**encode(INNER), "ratio": 10**400}, "file")


def test_every_field_of_a_manifest_is_checked(bundle: Bundle) -> None:
    """Each value replaced by one of another type: the message has its path."""
    whole = through_json(bundle.manifest)
    for name, value in whole.items():
        if name not in ("plan", "nvrtc"):
            wrong = "text" if isinstance(value, int | list | dict) else 1
            with pytest.raises(BundleError, match=f"^m: {name}: .*expected"):
                decode(Manifest, {**whole, name: wrong}, "m")
        with pytest.raises(BundleError, match=f"^m: {name} missing"):
            decode(Manifest, {k: v for k, v in whole.items() if k != name}, "m")


def test_encoding_makes_plain_values(tmp_path: Path) -> None:
    assert encode(INNER) == {
        "count": 3,
        "ratio": 0.1,
        "name": "ä\n",
        "flag": True,
        "maybe": None,
        "many": [1, 2],
        "pair": ["a", 2.0],
    }
    assert encode({"a": (INNER, None)})["a"] == [encode(INNER), None]
