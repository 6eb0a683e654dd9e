"""The dataflow: launches as nodes, and an edge for each reason why one comes after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import networkx as nx

from strata_runtime.launch import Launch


class Reason(Enum):
    """What the runtime guarantees: its queues, its waits, and what the host waits for."""

    QUEUE = "queue order"
    HANDOFF = "hand-off"
    HANDOFF_REUSE = "hand-off reuse"
    VERDICT = "verdict"
    DRAFTS = "drafts"
    CHUNK_DONE = "chunk done"
    RING_REUSE = "ring reuse"


@dataclass(frozen=True)
class Edge:
    """`after` starts once `before` is complete."""

    before: int
    after: int
    reason: Reason


class Dataflow:
    """Launches in the order in which they were queued, in a `networkx.MultiDiGraph`."""

    def __init__(self) -> None:
        """No launches."""
        self.graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()

    def add(self, launch: Launch) -> None:
        """Add a launch behind those that are there."""
        assert launch.id not in self.graph, launch.id
        self.graph.add_node(launch.id, launch=launch)

    def order(self, edge: Edge) -> None:
        """Add an edge between two launches that are there; a reason is kept once."""
        assert edge.before in self.graph and edge.after in self.graph, edge
        self.graph.add_edge(edge.before, edge.after, key=edge.reason)

    def launches(self) -> Iterator[Launch]:
        """All launches as queued."""
        return (data["launch"] for _, data in self.graph.nodes(data=True))

    def edges(self) -> Iterator[Edge]:
        """All edges."""
        return (Edge(a, b, key) for a, b, key in self.graph.edges(keys=True))

    def verify(self) -> None:
        """AssertionError where launches wait in a circle, or for one that comes later."""
        assert nx.is_directed_acyclic_graph(self.graph), nx.find_cycle(self.graph)
        position = {launch.id: i for i, launch in enumerate(self.launches())}
        late = [e for e in self.edges() if position[e.before] >= position[e.after]]
        assert not late, f"waits for what is queued later: {late[0]}"

    def describe(self) -> str:
        """One line a launch, with what it comes after."""
        return "\n".join(
            f"{x.id:5d}  stage {x.stage}  {x.program:12} context {x.table.context}  slots "
            f"{[s.slot for s in x.table.segments]}  after "
            + ", ".join(f"{a} ({key.value})" for a, _, key in self.graph.in_edges(x.id, keys=True))
            for x in self.launches()
        )

    def dot(self) -> str:
        """The launches for Graphviz, a cluster a stage."""
        lines = ["digraph dataflow {", "  rankdir=LR;"]
        for stage in sorted({x.stage for x in self.launches()}):
            names = " ".join(
                f'{x.id} [label="{x.id} {x.program}\\ncontext {x.table.context}"];'
                for x in self.launches()
                if x.stage == stage
            )
            lines.append(f'  subgraph cluster_{stage} {{ label="stage {stage}"; {names} }}')
        lines += [f'  {e.before} -> {e.after} [label="{e.reason.value}"];' for e in self.edges()]
        return "\n".join([*lines, "}"]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Launches and edges as plain JSON values."""
        return {
            "launches": [
                {
                    "id": x.id,
                    "stage": x.stage,
                    "program": x.program,
                    "context": x.table.context,
                    "rows": [
                        {"slot": r.slot, "position": r.position, "handoff_row": r.handoff_row}
                        for r in x.table.rows
                    ],
                }
                for x in self.launches()
            ],
            "edges": [
                {"before": e.before, "after": e.after, "reason": e.reason.value}
                for e in self.edges()
            ],
        }
