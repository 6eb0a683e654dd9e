"""The model graph: what `verify` refuses, rule by rule, and what the accessors say."""

from __future__ import annotations

import re

import pytest

from strata_compile.model.graph import EMBEDDING, ModelGraph, ModelInfo, Node
from strata_compile.model.ops import Attention, Embed, Linear, Op, RmsNorm, Rope, SwiGlu, Tensor

WIDTH, KV, VOCAB = 8, 4, 10
INFO = ModelInfo("tiny", "llama", layers=1, width=WIDTH, vocab=VOCAB, context=64)
ROPE = Rope(10000.0, 4, 1.0, None, interleaved=True)


def tensor(*shape: int) -> Tensor:
    return Tensor("x".join(map(str, shape)), "F32", shape)


#: A legal model: name to operator, layer, width, inputs.
Nodes = dict[str, tuple[Op, int, int, tuple[str, ...]]]
LEGAL: Nodes = {
    "embedding": (Embed(tensor(VOCAB, WIDTH)), EMBEDDING, WIDTH, ()),
    "norm": (RmsNorm(tensor(WIDTH), 1e-5), 0, WIDTH, ("embedding",)),
    "q": (Linear(tensor(WIDTH, WIDTH)), 0, WIDTH, ("norm",)),
    "k": (Linear(tensor(KV, WIDTH), tensor(KV)), 0, KV, ("norm",)),
    "v": (Linear(tensor(KV, WIDTH)), 0, KV, ("norm",)),
    "attention": (Attention(2, 1, 4, ROPE), 0, WIDTH, ("q", "k", "v")),
    "act": (SwiGlu(), 0, WIDTH, ("attention", "q")),
    "down": (Linear(tensor(WIDTH, WIDTH)), 0, WIDTH, ("act", "embedding")),
    "output": (Linear(tensor(VOCAB, WIDTH)), 1, VOCAB, ("down",)),
}


def graph_of(nodes: Nodes) -> ModelGraph:
    graph = ModelGraph(INFO)
    for name, (op, layer, width, inputs) in nodes.items():
        assert graph.add(Node(name, op, layer, width), inputs) == name
    return graph


def changed(
    name: str,
    op: Op | None = None,
    layer: int | None = None,
    width: int | None = None,
    inputs: tuple[str, ...] | None = None,
) -> Nodes:
    """LEGAL with one operator that differs."""
    was = LEGAL[name]
    new = (
        op or was[0],
        was[1] if layer is None else layer,
        was[2] if width is None else width,
        was[3] if inputs is None else inputs,
    )
    return {**LEGAL, name: new}


def changed_heads(heads: int, kv_heads: int) -> Nodes:
    """LEGAL with so many heads of width 4, and products that fit them."""
    q, kv = 4 * heads, 4 * kv_heads
    nodes: Nodes = {
        "q": (Linear(tensor(q, WIDTH)), 0, q, ("norm",)),
        "k": (Linear(tensor(kv, WIDTH)), 0, kv, ("norm",)),
        "v": (Linear(tensor(kv, WIDTH)), 0, kv, ("norm",)),
        "attention": (Attention(heads, kv_heads, 4, ROPE), 0, q, ("q", "k", "v")),
        "act": (SwiGlu(), 0, q, ("attention", "q")),
        "down": (Linear(tensor(WIDTH, q)), 0, WIDTH, ("act", "embedding")),
    }
    return {**LEGAL, **nodes}


def without(*names: str) -> Nodes:
    return {name: node for name, node in LEGAL.items() if name not in names}


@pytest.mark.parametrize("nodes", [LEGAL, changed_heads(4, 2), changed_heads(3, 1)])
def test_legal_graph(nodes: Nodes) -> None:
    graph = graph_of(nodes)
    graph.verify()
    assert len(list(graph)) == len(nodes)


BROKEN: dict[str, tuple[Nodes, str]] = {
    "no operator": ({}, "begins with its embedding"),
    "no embedding": (
        {"norm": (RmsNorm(tensor(WIDTH), 1e-5), 0, WIDTH, ())},
        "begins with its embedding",
    ),
    "a value that nobody reads": (
        {
            **without("output"),
            "lost": (RmsNorm(tensor(WIDTH), 1e-5), 0, WIDTH, ("norm",)),
            "output": LEGAL["output"],
        },
        "nobody reads: .*lost",
    ),
    "two ends": (
        {**LEGAL, "second": (Linear(tensor(VOCAB, WIDTH)), 1, VOCAB, ("down",))},
        "nobody reads: .*output",
    ),
    "no logits": (without("output"), "ends with its logits"),
    "layer past the head": (changed("output", layer=2), "'output'"),
    "layer before the embedding": (changed("embedding", layer=-2), "'embedding'"),
    "a layer that reads a later one": (changed("norm", layer=1), "'q'"),
    "embedding with an input": (
        {**LEGAL, "norm": (Embed(tensor(VOCAB, WIDTH)), 0, WIDTH, ("embedding",))},
        "'norm'",
    ),
    "embedding of another width": (
        changed("embedding", op=Embed(tensor(VOCAB, WIDTH + 1))),
        "'embedding'",
    ),
    "embedding of one dimension": (
        changed("embedding", op=Embed(tensor(VOCAB * WIDTH))),
        "'embedding'",
    ),
    "norm of another width": (changed("norm", op=RmsNorm(tensor(WIDTH + 1), 1e-5)), "'norm'"),
    "norm of two values": (changed("norm", inputs=("embedding", "embedding")), "'norm'"),
    "norm of another input": (changed("norm", width=KV, op=RmsNorm(tensor(KV), 1e-5)), "'norm'"),
    "product of another output": (changed("q", op=Linear(tensor(WIDTH + 1, WIDTH))), "'q'"),
    "product of another input": (changed("q", op=Linear(tensor(WIDTH, WIDTH + 1))), "'q'"),
    "product without input": (changed("q", inputs=()), "'q'"),
    "product of three values": (changed("down", inputs=("act", "norm", "norm")), "'down'"),
    "bias of another width": (changed("k", op=Linear(tensor(KV, WIDTH), tensor(3))), "'k'"),
    "residual of another width": (changed("down", inputs=("act", "k")), "'down'"),
    "attention of two values": (
        {k: n for k, n in changed("attention", inputs=("q", "k")).items() if k != "v"},
        "'attention'",
    ),
    "attention in another order": (changed("attention", inputs=("k", "q", "v")), "'attention'"),
    "attention of another width": (changed("attention", width=KV), "'attention'"),
    "heads that do not share": (changed_heads(3, 2), "'attention'"),
    "odd rope": (
        changed("attention", op=Attention(2, 1, 4, Rope(1e4, 3, 1.0, None, True))),
        "'attention'",
    ),
    "rope wider than a head": (
        changed("attention", op=Attention(2, 1, 4, Rope(1e4, 6, 1.0, None, True))),
        "'attention'",
    ),
    "gate of another width": (changed("act", inputs=("attention", "k")), "'act'"),
    "gate alone": (changed("act", inputs=("attention",)), "'act'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_verify_names_the_broken_operator(case: str) -> None:
    nodes, pattern = BROKEN[case]
    with pytest.raises(AssertionError, match=pattern):
        graph_of(nodes).verify()


@pytest.mark.parametrize(
    ("name", "inputs"), [("embedding", ()), ("fresh", ("nobody",)), ("fresh", ("fresh",))]
)
def test_add_refuses(name: str, inputs: tuple[str, ...]) -> None:
    graph = graph_of(LEGAL)
    with pytest.raises(AssertionError, match=name):
        graph.add(Node(name, SwiGlu(), 0, WIDTH), inputs)
    assert [n.name for n in graph] == list(LEGAL)


def test_accessors() -> None:
    graph = graph_of(LEGAL)
    assert [n.name for n in graph] == list(LEGAL)
    assert graph["k"] == Node("k", LEGAL["k"][0], 0, KV)
    assert graph.inputs("attention") == ("q", "k", "v")
    assert graph.inputs("embedding") == ()
    assert graph.consumers("norm") == ("q", "k", "v")
    assert graph.consumers("q") == ("attention", "act")
    assert graph.consumers("output") == ()
    with pytest.raises(KeyError):
        graph["nobody"]


def test_one_value_may_be_both_inputs() -> None:
    graph = graph_of(changed("act", inputs=("q", "q")))
    assert graph.inputs("act") == ("q", "q")
    assert graph.consumers("q") == ("attention", "act")


def test_describe_has_a_line_for_each_operator() -> None:
    lines = graph_of(LEGAL).describe().splitlines()
    assert len(lines) == len(LEGAL)
    for line, (name, (op, layer, width, inputs)) in zip(lines, LEGAL.items(), strict=True):
        fields = line.split()
        assert fields[:4] == [str(layer), name, type(op).__name__, str(width)]
        assert ", ".join(inputs) in line
    assert lines[3].endswith("[4x8 F32 (4, 8)]  [4 F32 (4,)]")


def test_dot_has_every_operator_and_every_edge() -> None:
    text = graph_of(LEGAL).dot()
    assert text.startswith("digraph model {\n") and text.endswith("}\n")
    nodes = re.findall(r'^  "(\w+)" \[label="(\w+)\\n(\w+) (\d+)"\];$', text, re.MULTILINE)
    assert nodes == [(n, n, type(op).__name__, str(w)) for n, (op, _, w, _) in LEGAL.items()]
    edges = re.findall(r'^  "(\w+)" -> "(\w+)";$', text, re.MULTILINE)
    assert sorted(edges) == sorted((i, n) for n, node in LEGAL.items() for i in node[3])
    assert len(text.splitlines()) == 2 + len(nodes) + len(edges)
