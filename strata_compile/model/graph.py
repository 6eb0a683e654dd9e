"""The model graph: operators as nodes, values as edges, behind typed accessors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

from strata_compile.model.ops import Op, weights_of

#: Where the embedding stands; layers follow from 0, and the head after the last of them.
EMBEDDING = -1


@dataclass(frozen=True)
class Node:
    """One operator, the layer it belongs to, and the width of the row that it gives."""

    name: str
    op: Op
    layer: int
    width: int


@dataclass(frozen=True)
class ModelInfo:
    """What the rest of the compiler asks of a model: names, and counts in elements."""

    name: str
    architecture: str
    layers: int
    width: int
    vocab: int
    context: int


class ModelGraph:
    """Operators in `networkx`; nodes are known by name, inputs are ordered."""

    def __init__(self, info: ModelInfo) -> None:
        """An empty graph for a model."""
        self.info = info
        self._graph: nx.DiGraph[str] = nx.DiGraph()

    def add(self, node: Node, inputs: Sequence[str] = ()) -> str:
        """Add an operator behind its inputs, and return its name; the name must be new."""
        assert node.name not in self._graph, node.name
        assert all(name in self._graph for name in inputs), (node.name, inputs)
        self._graph.add_node(node.name, node=node, inputs=tuple(inputs))
        self._graph.add_edges_from((name, node.name) for name in inputs)
        return node.name

    def __getitem__(self, name: str) -> Node:
        """The operator of this name."""
        node: Node = self._graph.nodes[name]["node"]
        return node

    def __iter__(self) -> Iterator[Node]:
        """All operators, each behind its inputs; in the order of adding."""
        return (self[name] for name in self._graph)

    def inputs(self, name: str) -> tuple[str, ...]:
        """Names of an operator's inputs, in the operator's order."""
        inputs: tuple[str, ...] = self._graph.nodes[name]["inputs"]
        return inputs

    def consumers(self, name: str) -> tuple[str, ...]:
        """Names of the operators that read an operator's value."""
        return tuple(self._graph.successors(name))

    def verify(self) -> None:
        """Raise AssertionError, naming the operator, where the graph is not a legal model."""
        from strata_compile.model.verify import verify_graph

        verify_graph(self)

    def describe(self) -> str:
        """One line an operator: layer, name, operator, width, inputs."""
        return "\n".join(
            f"{n.layer:4d}  {n.name:28} {type(n.op).__name__:10} {n.width:7d}  "
            f"{', '.join(self.inputs(n.name))}"
            f"{''.join(f'  [{w.name} {w.type} {w.shape}]' for w in weights_of(n.op))}"
            for n in self
        )

    def dot(self) -> str:
        """The graph for Graphviz."""
        lines = [
            f'  "{n.name}" [label="{n.name}\\n{type(n.op).__name__} {n.width}"];' for n in self
        ]
        lines += [f'  "{a}" -> "{b}";' for a, b in self._graph.edges]
        return "digraph model {\n" + "\n".join(lines) + "\n}\n"
