"""What a legal model graph is."""

from __future__ import annotations

from strata_compile.model.graph import EMBEDDING, ModelGraph
from strata_compile.model.ops import Embed


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
        assert node.op.fits(node.width, [i.width for i in inputs]), where
