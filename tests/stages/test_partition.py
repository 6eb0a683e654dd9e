"""Layers to stages: shares, listed ranges, what `verify` refuses, and what the plan is told."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from compile_case import HEAD, tiny_graph
from strata_compile.errors import PlanError
from strata_compile.model.graph import EMBEDDING, ModelGraph, ModelInfo, Node
from strata_compile.model.ops import Embed, Linear, SwiGlu, Tensor
from strata_compile.plan.loader import parse_plan
from strata_compile.stages.partition import Stage, StagedModel, partition

LAYERS = 5


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ModelGraph:
    return tiny_graph(tmp_path_factory.mktemp("model"), layers=LAYERS)


def staged(graph: ModelGraph, lines: str) -> StagedModel:
    model = partition(parse_plan(HEAD + lines, Path("plan.yaml")), graph)
    model.verify()
    return model


def ranges(model: StagedModel) -> list[tuple[int, int]]:
    return [(s.first, s.last) for s in model.stages]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", [(0, 4)]),
        ("stages: auto\n", [(0, 4)]),
        ("stages: 1\n", [(0, 4)]),
        ("stages: 2\n", [(0, 2), (3, 4)]),
        ("stages: 3\n", [(0, 1), (2, 3), (4, 4)]),
        ("stages: 4\n", [(0, 1), (2, 2), (3, 3), (4, 4)]),
        ("stages: 5\n", [(i, i) for i in range(5)]),
        ("stages: [{layers: 0-4}]\n", [(0, 4)]),
        ("stages: [{layers: 0}, {layers: 1-3}, {layers: 4}]\n", [(0, 0), (1, 3), (4, 4)]),
    ],
)
def test_ranges(graph: ModelGraph, lines: str, expected: list[tuple[int, int]]) -> None:
    model = staged(graph, lines)
    assert ranges(model) == expected
    assert [s.index for s in model.stages] == list(range(len(expected)))
    assert [s.embeds for s in model.stages] == [True] + [False] * (len(expected) - 1)
    assert [s.ends for s in model.stages] == [False] * (len(expected) - 1) + [True]


@pytest.mark.parametrize("count", range(1, LAYERS + 1))
def test_equal_shares_differ_by_one_at_most(graph: ModelGraph, count: int) -> None:
    lengths = [last - first + 1 for first, last in ranges(staged(graph, f"stages: {count}\n"))]
    assert sum(lengths) == LAYERS and max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)  # the last also has the head


def test_device_and_memory_of_listed_stages(graph: ModelGraph) -> None:
    lines = "stages:\n - {layers: 0-2, device: cuda:1, memory: 3MiB}\n - {layers: 3-4}\n"
    first, second = staged(graph, lines).stages
    assert (first.device, first.memory) == ("cuda:1", 3 << 20)
    assert (second.device, second.memory) == (None, None)


@pytest.mark.parametrize("count", range(1, LAYERS + 1))
def test_every_operator_has_one_stage(graph: ModelGraph, count: int) -> None:
    model = staged(graph, f"stages: {count}\n")
    names = [[n.name for n in model.nodes(s)] for s in model.stages]
    assert [name for stage in names for name in stage] == [n.name for n in graph]
    assert names[0][0] == "embedding" and names[-1][-2:] == ["output_norm", "output"]
    for stage in model.stages:
        layers = {n.layer for n in model.nodes(stage)} - {EMBEDDING, LAYERS}
        assert layers == set(range(stage.first, stage.last + 1))


def test_incoming_is_the_residual_stream(graph: ModelGraph) -> None:
    model = staged(graph, "stages: 3\n")
    assert [model.incoming(s) for s in model.stages[1:]] == ["blk.1.ffn_down", "blk.3.ffn_down"]


def test_describe_has_a_line_for_each_stage(graph: ModelGraph) -> None:
    lines = "stages:\n - {layers: 0-3, device: cuda:0}\n - {layers: 4}\n"
    assert staged(graph, lines).describe().splitlines() == [
        "stage 0: layers 0-3 on cuda:0, embedding",
        "stage 1: layers 4-4 on any device, head",
    ]


@pytest.mark.parametrize("change", [{"last": 1}, {"last": 3}, {"embeds": False}, {"ends": True}])
def test_verify_finds_an_operator_without_its_one_stage(
    graph: ModelGraph, change: dict[str, int]
) -> None:
    first, second = staged(graph, "stages: 2\n").stages
    broken = StagedModel(graph, (dataclasses.replace(first, **change), second))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"is in stages \[(0, 1)?\]"):
        broken.verify()


def skipping_graph() -> ModelGraph:
    """Two layers; the second reads the first one's value and the embedding's."""
    graph = ModelGraph(ModelInfo("skip", "llama", layers=2, width=4, vocab=8, context=64))
    graph.add(Node("embedding", Embed(Tensor("e", "F32", (8, 4))), EMBEDDING, 4))
    square = Linear(Tensor("w", "F32", (4, 4)))
    graph.add(Node("a", square, 0, 4), ["embedding"])
    graph.add(Node("b", SwiGlu(), 1, 4), ["a", "embedding"])
    graph.add(Node("output", Linear(Tensor("o", "F32", (8, 4))), 2, 8), ["b"])
    graph.verify()
    return graph


def test_verify_finds_two_values_on_a_border() -> None:
    stages = (
        Stage(0, 0, 0, None, None, embeds=True, ends=False),
        Stage(1, 1, 1, None, None, embeds=False, ends=True),
    )
    with pytest.raises(AssertionError, match=re.escape("stage 1 takes ['a', 'embedding']")):
        StagedModel(skipping_graph(), stages).verify()


@pytest.mark.parametrize(
    ("lines", "report"),
    [
        ("slots: 2\nstages: 6\n", "3: stages: 6 stages need as many layers, the model has 5"),
        ("stages: [{layers: 0-5}]\n", "2: stages[0].layers: no layer 5: the model has layers 0-4"),
        ("stages: [{layers: 0-2}]\n", "2: stages[0].layers: no stage has layers 3-4 of the model"),
        (
            "stages:\n - layers: 0-2\n - layers: 3-7\n",
            "4: stages[1].layers: no layers 5-7: the model has layers 0-4",
        ),
        ("kv: f32\n\ncontext: 513\n", "4: context: 513 tokens are beyond the model's 512"),
    ],
)
def test_a_plan_that_does_not_fit_its_model(graph: ModelGraph, lines: str, report: str) -> None:
    with pytest.raises(PlanError) as caught:
        staged(graph, lines)
    assert str(caught.value) == f"plan.yaml:{report}"
