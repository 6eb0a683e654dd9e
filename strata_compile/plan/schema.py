"""What a plan is: frozen dataclasses in the words of plan.yaml, and the names that it may use."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from strata_compile.errors import PlanError
from strata_kernels.table import ROW_LIMIT

SLOT_LIMIT = 1024  # slots, and so groups; keeps tables and masks at a sane size
STAGE_LIMIT = 1024
LAYER_LIMIT = 65536
CONTEXT_LIMIT = 2**31 - 1  # positions are int32 in the table
PROMPT_SIZE_LIMIT = 65536  # rows of one prompt program
MEMORY_LIMIT = 2**50  # bytes of one device

KvFormat = Literal["f32", "f16"]
KV_FORMATS: tuple[KvFormat, ...] = ("f32", "f16")
KV_FORMATS_LATER = frozenset({"int8"})  # known words that this version cannot build

Partition = Literal["none", "sms"]
PARTITIONS: tuple[Partition, ...] = ("none", "sms")

DRAFT_KINDS = ("none", "mtp", "ngram")
DRAFT_KINDS_READY = frozenset({"none", "mtp", "ngram"})  # what this version can build
DRAFT_DEPTH = ROW_LIMIT - 1  # most drafts: the slot's real token takes the first row of its window
DRAFT_KEYS = ("kind", "model", "depth", "min_p", "vocab")
DRAFT_KEYS_OF = {"none": ("kind",), "ngram": ("kind", "depth"), "mtp": DRAFT_KEYS}

TARGETS = ("cpu", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


@dataclasses.dataclass(frozen=True)
class StageSpec:
    """One listed stage: its layers, first and last included, and where it runs.

    `device` is "cpu" or "cuda:N"; `memory` is in bytes; None leaves either to the compiler.
    """

    layers: tuple[int, int]
    device: str | None = None
    memory: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the stage as plan.yaml would say it, without what it leaves open."""
        stage: dict[str, object] = {"layers": list(self.layers)}
        if self.device is not None:
            stage["device"] = self.device
        if self.memory is not None:
            stage["memory"] = f"{self.memory}B"
        return stage


@dataclasses.dataclass(frozen=True)
class StagesSpec:
    """How layers are cut: `listed` stages, or `count` equal shares, or (neither) automatically."""

    count: int | None = None
    listed: tuple[StageSpec, ...] = ()

    @property
    def auto(self) -> bool:
        """Whether the compiler chooses the cut."""
        return self.count is None and not self.listed

    def to_json(self) -> object:
        """Return "auto", the number of shares or the list of stages, as plan.yaml would."""
        if self.listed:
            return [stage.to_json() for stage in self.listed]
        return "auto" if self.count is None else self.count


@dataclasses.dataclass(frozen=True)
class DraftSpec:
    """Who proposes drafts, and at most how many (`depth`) behind a slot's real token.

    With `auto` the scheduler chooses how many, up to `depth`. An MTP layer is in the file `model`
    (None: in the plan's model file); its chain is cut where its own probability falls below
    `min_p`, and it proposes only the `vocab` lowest ids (None: all).
    """

    kind: str = "none"
    depth: int = 0
    auto: bool = False
    model: str | None = None
    min_p: float = 0.0
    vocab: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the drafter as plan.yaml would say it."""
        spec: dict[str, object] = {"kind": self.kind}
        if self.kind != "none":
            spec["depth"] = "auto" if self.auto else self.depth
        if self.model is not None:
            spec["model"] = self.model
        if self.kind == "mtp":
            spec["min_p"] = self.min_p
        return spec | ({"vocab": self.vocab} if self.vocab else {})


@dataclasses.dataclass(frozen=True)
class PromptSpec:
    """How prompts are read: longest pause for decoding slots (ms), rows of the prompt programs."""

    max_gap_ms: float = 100.0
    sizes: tuple[int, ...] = (32, 128, 512)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user asks for.

    `source` is the plan's file: a `model` that is a path is relative to its folder. `context` is in
    tokens, None for the model's own. With `partition` sms, stages that share a card share out its
    multiprocessors. `lines` says where each field path stands in the file.
    """

    model: str
    source: Path
    stages: StagesSpec = StagesSpec()
    slots: int = 1
    groups: int = 1
    context: int | None = None
    kv: KvFormat = "f16"
    draft: DraftSpec = DraftSpec()
    prompt: PromptSpec = PromptSpec()
    partition: Partition = "none"
    targets: tuple[str, ...] = ("cpu",)
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def error(self, field_path: str, message: str) -> PlanError:
        """Return an error at a field such as "stages[1].layers", or where it would be written."""
        return PlanError(self.source, self._line(field_path), field_path, message)

    def to_json(self) -> dict[str, object]:
        """Return the plan as plain JSON values with the keys of plan.yaml, defaults included."""
        return {
            "model": self.model,
            "stages": self.stages.to_json(),
            "slots": self.slots,
            "groups": self.groups,
            "context": self.context,
            "kv": self.kv,
            "draft": self.draft.to_json(),
            "prompt": {"max_gap_ms": self.prompt.max_gap_ms, "sizes": list(self.prompt.sizes)},
            "partition": self.partition,
            "targets": list(self.targets),
        }

    def _line(self, field_path: str) -> int | None:
        """A field that was left to its default has the line of what would contain it."""
        while field_path and field_path not in self.lines:
            field_path = field_path[: max(field_path.rfind("."), field_path.rfind("["), 0)]
        return self.lines.get(field_path)


def key_names(spec: type, *, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a dataclass's fields, which are the keys of its YAML mapping, less those not there."""
    return tuple(f.name for f in dataclasses.fields(spec) if f.name not in without)


PLAN_KEYS = key_names(Plan, without=("source", "lines"))
STAGE_KEYS = key_names(StageSpec)
PROMPT_KEYS = key_names(PromptSpec)
