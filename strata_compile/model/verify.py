"""What a legal model graph is."""

from __future__ import annotations

from strata_compile.model.graph import EMBEDDING, ModelGraph, Node
from strata_compile.model.ops import Attention, Concat, Embed, Hidden, Linear, RmsNorm, SwiGlu


def verify_graph(graph: ModelGraph) -> None:
    """AssertionError with the operator and its inputs where a rule is broken."""
    nodes = list(graph)
    assert nodes and isinstance(nodes[0].op, Embed), "a model begins with its embedding"
    ends = [n.name for n in nodes if not graph.consumers(n.name)]
    assert ends == [nodes[-1].name], f"values that nobody reads: {ends[:-1]}"
    assert nodes[-1].width == graph.info.vocab, "a model ends with its logits"
    for node in nodes:
        inputs = [graph[name] for name in graph.inputs(node.name)]
        where = f"{node} <- {inputs}"
        assert EMBEDDING <= node.layer <= graph.info.layers, where
        assert all(i.layer <= node.layer for i in inputs), where
        assert _widths_fit(node, [i.width for i in inputs]), where


def _widths_fit(node: Node, widths: list[int]) -> bool:
    """Do an operator's own width and those of its inputs agree with its payload?"""
    match node.op:
        case Embed(weight):
            return widths == [] and weight.shape[1:] == (node.width,)
        case RmsNorm(weight, _):
            return widths == [node.width] and weight.shape == (node.width,)
        case Linear(weight, bias):
            fits = weight.shape == (node.width, *widths[:1]) and widths[1:] in ([], [node.width])
            return bool(widths) and fits and (bias is None or bias.shape == (node.width,))
        case Attention(heads, kv_heads, head_dim, rope):
            q, kv = heads * head_dim, kv_heads * head_dim
            whole = heads % kv_heads == 0 and rope.dims % 2 == 0 and rope.dims <= head_dim
            return widths == [q, kv, kv] and node.width == q and whole
        case SwiGlu():
            return widths == [node.width] * 2
        case Hidden():
            return widths == []
        case Concat():
            return len(widths) == 2 and sum(widths) == node.width
