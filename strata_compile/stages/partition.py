"""Cuts the model graph into stages: contiguous ranges of layers, one device each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from strata_compile.model.graph import ModelGraph, Node
from strata_compile.plan.check import check_against_model
from strata_compile.plan.schema import Plan, StageSpec


@dataclass(frozen=True)
class Stage:
    """Layers `first`..`last` on a device; `memory` bounds its device bytes, None: unbounded."""

    index: int
    first: int
    last: int
    device: str | None
    memory: int | None
    embeds: bool
    ends: bool

    def holds(self, node: Node) -> bool:
        """Does this stage run the operator? The first embeds, the last has the head."""
        low = node.layer >= self.first or self.embeds
        return low and (node.layer <= self.last or self.ends)


@dataclass(frozen=True)
class StagedModel:
    """The model graph and its stages, in order; the drafter, if any, is on the last of them."""

    graph: ModelGraph
    stages: tuple[Stage, ...]
    drafter: ModelGraph | None = None

    def nodes(self, stage: Stage) -> Iterator[Node]:
        """The operators of a stage, each behind its inputs."""
        return (node for node in self.graph if stage.holds(node))

    def verify(self) -> None:
        """Every operator has one stage, and one value crosses each border."""
        for node in self.graph:
            homes = [s.index for s in self.stages if s.holds(node)]
            assert len(homes) == 1, f"{node} is in stages {homes}"
        for stage in self.stages[1:]:
            self.incoming(stage)

    def incoming(self, stage: Stage) -> str:
        """The value that a stage takes from the one before it."""
        names = {
            name
            for node in self.nodes(stage)
            for name in self.graph.inputs(node.name)
            if not stage.holds(self.graph[name])
        }
        assert len(names) == 1, f"stage {stage.index} takes {sorted(names)}"
        return names.pop()

    def describe(self) -> str:
        """One line a stage."""
        return "\n".join(
            f"stage {s.index}: layers {s.first}-{s.last} on {s.device or 'any device'}"
            f"{', embedding' if s.embeds else ''}{', head' if s.ends else ''}"
            for s in self.stages
        )


def partition(plan: Plan, graph: ModelGraph, drafter: ModelGraph | None = None) -> StagedModel:
    """Stages as the plan asks: listed, N equal shares, or one; PlanError where they do not fit."""
    info = graph.info
    check_against_model(plan, layer_count=info.layers, context_length=info.context)
    specs = plan.stages.listed or _equal_shares(plan.stages.count or 1, info.layers)
    last = len(specs) - 1
    stages = tuple(
        Stage(i, *spec.layers, spec.device, spec.memory, embeds=i == 0, ends=i == last)
        for i, spec in enumerate(specs)
    )
    return StagedModel(graph, stages, drafter)


def _equal_shares(count: int, layers: int) -> tuple[StageSpec, ...]:
    """`count` ranges whose lengths differ by at most one; later stages, which end, get fewer."""
    share, extra = divmod(layers, count)
    starts = [i * share + min(i, extra) for i in range(count + 1)]
    return tuple(StageSpec((a, b - 1)) for a, b in pairwise(starts))
