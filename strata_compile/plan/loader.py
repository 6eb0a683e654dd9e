"""plan.yaml to Plan: the file, then one reader per key."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import TypeVar

from strata_compile.errors import PlanError
from strata_compile.plan.check import check_plan
from strata_compile.plan.fields import (
    Field,
    field_lines,
    nearest,
    parse_fields,
    read_choice,
    read_int,
    read_list,
    read_mapping,
    read_number,
    read_positive,
    read_text,
    shorten,
)
from strata_compile.plan.schema import (
    CONTEXT_LIMIT,
    DRAFT_DEPTH,
    DRAFT_KEYS,
    DRAFT_KEYS_OF,
    DRAFT_KINDS,
    DRAFT_KINDS_READY,
    KV_FORMATS,
    KV_FORMATS_LATER,
    LAYER_LIMIT,
    MEMORY_LIMIT,
    PARTITIONS,
    PLAN_KEYS,
    PROMPT_KEYS,
    PROMPT_SIZE_LIMIT,
    SLOT_LIMIT,
    STAGE_KEYS,
    STAGE_LIMIT,
    TARGETS,
    DraftSpec,
    KvFormat,
    Partition,
    Plan,
    PromptSpec,
    StageSpec,
    StagesSpec,
)
from strata_kernels.table import ROW_LIMIT

T = TypeVar("T")

_FILE_LIMIT = 64 << 10  # bytes; a plan has a few hundred
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,3})")
_LAYERS = re.compile(r"([0-9]{1,5}) ?- ?([0-9]{1,5})")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)")
_UNITS = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}


def load_plan(path: Path) -> Plan:
    """Return the plan in a YAML file; PlanError names the file, line and field at fault."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_LIMIT + 1)
    except FileNotFoundError:
        raise PlanError(path, None, "", "no such file") from None
    except IsADirectoryError:
        raise PlanError(path, None, "", "is a folder, not a plan") from None
    except OSError as error:
        raise PlanError(path, None, "", f"cannot be read: {error.strerror}") from None
    if len(data) > _FILE_LIMIT:
        raise PlanError(path, None, "", f"is larger than {_FILE_LIMIT >> 10} KiB, so not a plan")
    return parse_plan(_decode(data, path), path)


def parse_plan(text: str, source: Path) -> Plan:
    """Return the plan in a YAML text; `source` is the file that errors and paths refer to."""
    root = parse_fields(text, source)
    fields = read_mapping(root, PLAN_KEYS)
    if "model" not in fields:
        advice = "is missing: write 'model: FILE.gguf' or 'model: package:NAME/FILE'"
        raise PlanError(source, root.line, "model", advice)
    plan = Plan(
        model=_model(fields["model"]),
        source=source,
        stages=_key(fields, "stages", _stages, Plan.stages),
        partition=_key(fields, "partition", _partition, Plan.partition),
        slots=_key(fields, "slots", _slots, Plan.slots),
        groups=_key(fields, "groups", _slots, Plan.groups),
        context=_key(fields, "context", _context, Plan.context),
        kv=_key(fields, "kv", _kv, Plan.kv),
        draft=_key(fields, "draft", _draft, Plan.draft),
        prompt=_key(fields, "prompt", _prompt, Plan.prompt),
        targets=_key(fields, "targets", _targets, Plan.targets),
        lines=field_lines(root),
    )
    check_plan(plan)
    return plan


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text: byte {data[error.start]:#04x}"
        raise PlanError(path, line, "", message) from None


def _key(fields: Mapping[str, Field], name: str, read: Callable[[Field], T], default: T) -> T:
    return read(fields[name]) if name in fields else default


def _model(field: Field) -> str:
    text = read_text(field)
    scheme, colon, rest = text.partition(":")
    if not colon or scheme != "package":
        return text
    name, _, file = rest.partition("/")
    inside = file and not file.startswith("/") and ".." not in PurePosixPath(file).parts
    if not (_PACKAGE.fullmatch(name) and inside):
        raise field.error(f"must have the form package:NAME/FILE, found {shorten(text)}")
    return text


def _stages(field: Field) -> StagesSpec:
    if field.kind == "list":
        return StagesSpec(listed=tuple(_stage(entry) for entry in read_list(field)))
    if field.kind == "number":
        return StagesSpec(count=read_int(field, 1, STAGE_LIMIT))
    if field.value != "auto":
        raise field.wrong("auto, a number of stages or a list of stages")
    return StagesSpec()


def _stage(field: Field) -> StageSpec:
    fields = read_mapping(field, STAGE_KEYS)
    if "layers" not in fields:
        raise PlanError(field.source, field.line, f"{field.path}.layers", "is missing")
    return StageSpec(
        layers=_layers(fields["layers"]),
        device=_key(fields, "device", _device, StageSpec.device),
        memory=_key(fields, "memory", _memory, StageSpec.memory),
    )


def _layers(field: Field) -> tuple[int, int]:
    first, last = _layer_range(field)
    if first > last:
        raise field.error(f"the first layer, {first}, comes after the last, {last}")
    return first, last


def _layer_range(field: Field) -> tuple[int, int]:
    if field.kind == "number":
        layer = read_int(field, 0, LAYER_LIMIT - 1)
        return layer, layer
    if isinstance(field.value, tuple) and len(field.value) == 2:
        first, last = (read_int(entry, 0, LAYER_LIMIT - 1) for entry in field.value)
        return first, last
    match = _LAYERS.fullmatch(field.value) if isinstance(field.value, str) else None
    if match is None:
        raise field.wrong("layers such as 0-14, [0, 14] or 7")
    return int(match[1]), int(match[2])


def _device(field: Field) -> str:
    text = read_text(field)
    if not _DEVICE.fullmatch(text):
        raise field.wrong("cpu or cuda:N such as cuda:0")
    return text


def _memory(field: Field) -> int:
    """Return bytes."""
    match = _SIZE.fullmatch(field.value) if isinstance(field.value, str) else None
    if match is None:
        raise field.wrong("a size with its unit such as 22GiB or 800MiB")
    if match[2] not in _UNITS:
        units = tuple(_UNITS)
        advice = nearest(match[2], units) or f"; known: {', '.join(units)}"
        raise field.error(f"unknown unit {shorten(match[2])}{advice}")
    size = int(Decimal(match[1]) * _UNITS[match[2]])
    if not 1 <= size <= MEMORY_LIMIT:
        raise field.wrong(f"between 1B and {MEMORY_LIMIT >> 40}TiB")
    return size


def _slots(field: Field) -> int:
    return read_int(field, 1, SLOT_LIMIT)


def _context(field: Field) -> int:
    # A window is a real token and what follows it: one position alone cannot be decoded.
    return read_int(field, 2, CONTEXT_LIMIT)


def _partition(field: Field) -> Partition:
    return read_choice(field, PARTITIONS)


def _kv(field: Field) -> KvFormat:
    if isinstance(field.value, str) and field.value in KV_FORMATS_LATER:
        supported = " or ".join(KV_FORMATS)
        raise field.error(f"{field.value} is not in this version: write {supported}")
    return read_choice(field, KV_FORMATS)


def _draft(field: Field) -> DraftSpec:
    if field.kind != "mapping":
        return _draft_of(field, {"kind": field})
    return _draft_of(field, read_mapping(field, DRAFT_KEYS))


def _draft_of(field: Field, fields: Mapping[str, Field]) -> DraftSpec:
    kind = _key(fields, "kind", _draft_kind, DraftSpec.kind)
    for name, entry in fields.items():
        if name not in DRAFT_KEYS_OF[kind]:  # nothing would read it
            raise entry.error(f"has no effect where the draft kind is {kind}: leave it out")
    depth = _key(fields, "depth", _depth, 0 if kind == "none" else None)  # None: auto
    return DraftSpec(
        kind=kind,
        depth=DRAFT_DEPTH if depth is None else depth,
        auto=depth is None,
        model=_key(fields, "model", _model, DraftSpec.model),
        min_p=_key(fields, "min_p", _probability, DraftSpec.min_p),
        vocab=_key(fields, "vocab", _vocab, DraftSpec.vocab),
    )


def _probability(field: Field) -> float:
    value = read_number(field)
    if not 0 <= value <= 1:
        raise field.wrong("a probability from 0 to 1")
    return value


def _vocab(field: Field) -> int:
    return read_int(field, 1, CONTEXT_LIMIT)


def _depth(field: Field) -> int | None:
    """Return how many drafts a window has at most, None for auto."""
    if field.kind != "number":
        if field.value != "auto":
            raise field.wrong(f"auto or a whole number from 1 to {DRAFT_DEPTH}")
        return None
    return read_int(field, 1, DRAFT_DEPTH)


def _draft_kind(field: Field) -> str:
    kind = read_choice(field, DRAFT_KINDS)
    if kind not in DRAFT_KINDS_READY:
        ready = ", ".join(sorted(DRAFT_KINDS_READY))
        raise field.error(f"the drafter {kind} is not in this version: write one of {ready}")
    return kind


def _prompt(field: Field) -> PromptSpec:
    fields = read_mapping(field, PROMPT_KEYS)
    return PromptSpec(
        max_gap_ms=_key(fields, "max_gap_ms", read_positive, PromptSpec.max_gap_ms),
        sizes=_key(fields, "sizes", _prompt_sizes, PromptSpec.sizes),
    )


def _prompt_sizes(field: Field) -> tuple[int, ...]:
    sizes: list[int] = []
    for entry in read_list(field):
        size = read_int(entry, ROW_LIMIT, PROMPT_SIZE_LIMIT)
        if size % ROW_LIMIT:
            raise entry.error(f"must be a multiple of {ROW_LIMIT}, found {size}")
        if sizes and size <= sizes[-1]:
            raise entry.error(f"sizes must ascend, found {size} after {sizes[-1]}")
        sizes.append(size)
    return tuple(sizes)


def _targets(field: Field) -> tuple[str, ...]:
    targets: list[str] = []
    for entry in read_list(field):
        target = read_choice(entry, TARGETS)
        if target in targets:
            raise entry.error(f"{target} is listed twice")
        targets.append(target)
    return tuple(targets)
