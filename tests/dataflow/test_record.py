"""The recorded dataflow: every edge has its reason, and every use of a hand-off is ordered."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest

from strata_compile.dataflow.graph import Dataflow, Edge, Reason
from strata_compile.dataflow.record import record_dataflow
from strata_runtime.bundle_format import Shape
from strata_runtime.launch import Launch, Table

SHAPES = [(1, 1, 1), (2, 4, 2), (3, 4, 1), (2, 16, 2), (4, 6, 6)]


def shape_of(slots: int, groups: int, ring: int = 64, drafter: str = "none") -> Shape:
    """A bundle's counts."""
    depth = 0 if drafter == "none" else 3
    return Shape(slots, groups, 512, 8, (32, 128), 2, 100.0, ring, drafter, depth)


@pytest.mark.parametrize(("stages", "slots", "groups"), SHAPES)
def test_every_stage_runs_the_same_launches_in_one_order(
    stages: int, slots: int, groups: int
) -> None:
    """The dataflow is acyclic; stages differ in nothing but the launch's id."""
    dataflow = record_dataflow(shape_of(slots, groups), (False,) * stages)
    dataflow.verify()
    per_stage = [
        [(x.program, x.table) for x in dataflow.launches() if x.stage == stage]
        for stage in range(stages)
    ]
    assert all(launches == per_stage[0] for launches in per_stage)
    windows = [table for program, table in per_stage[0] if program.startswith("exec")]
    assert sum(len(t.rows) for t in windows) == 3 * slots
    assert {s.slot for t in windows for s in t.segments} == set(range(slots))


@pytest.mark.parametrize(("stages", "slots", "groups"), SHAPES)
def test_hand_offs_are_ordered(stages: int, slots: int, groups: int) -> None:
    """A hand-off row's writer, its reader, and its next writer follow each other by edges."""
    dataflow = record_dataflow(shape_of(slots, groups), (False,) * stages)
    reached = {n: nx.descendants(dataflow.graph, n) for n in dataflow.graph}
    checked = 0
    for boundary in range(stages - 1):
        last_reader: dict[int, int] = {}
        writers = [x for x in dataflow.launches() if x.stage == boundary]
        readers = [x for x in dataflow.launches() if x.stage == boundary + 1]
        for writer, reader in zip(writers, readers, strict=True):
            assert reader.id in reached[writer.id]
            for row in writer.table.rows:
                if row.handoff_row in last_reader:
                    assert writer.id in reached[last_reader[row.handoff_row]]
                    checked += 1
                last_reader[row.handoff_row] = reader.id
    assert checked > 0 or stages == 1


def test_reasons_are_those_of_the_runtime() -> None:
    """Two stages, two windows in flight: all reasons but the ring's occur; the ring's on demand."""
    found = {e.reason for e in record_dataflow(shape_of(4, 2), (False,) * 2).edges()}
    assert found == set(Reason) - {Reason.RING_REUSE, Reason.DRAFTS}
    long = record_dataflow(shape_of(16, 2, ring=8), (False,) * 2)
    assert Reason.RING_REUSE in {e.reason for e in long.edges()}


def test_json_and_text_name_every_launch() -> None:
    """What is dumped and what is bundled is the whole dataflow."""
    dataflow = record_dataflow(shape_of(2, 1), (False,) * 2)
    value = dataflow.to_json()
    assert [x["id"] for x in value["launches"]] == [x.id for x in dataflow.launches()]
    assert len(value["edges"]) == dataflow.graph.number_of_edges()
    assert len(dataflow.describe().splitlines()) == len(value["launches"])
    assert dataflow.dot().count(" -> ") == len(value["edges"])


def test_a_circle_is_found() -> None:
    """verify() objects to launches that wait for each other."""
    dataflow = Dataflow()
    for number in (1, 2):
        dataflow.add(Launch(number, 0, "exec.r1", Table("exec", 0, (), ())))
    dataflow.order(Edge(1, 2, Reason.QUEUE))
    dataflow.verify()
    dataflow.order(Edge(2, 1, Reason.VERDICT))
    with pytest.raises(AssertionError):
        dataflow.verify()


def test_a_chain_follows_its_window_and_precedes_the_next() -> None:
    """The draft program stands right behind the last stage's exec, and the host waits for it."""
    dataflow = record_dataflow(shape_of(4, 2, drafter="mtp"), (False,) * 2)
    dataflow.verify()
    launches = list(dataflow.launches())
    chains = [x for x in launches if x.table.kind == "draft"]
    assert chains and all(x.stage == 1 and x.program == "draft.r1" for x in chains)
    for chain in chains:
        before = launches[launches.index(chain) - 1]
        assert before.table == replace(chain.table, kind="exec") and before.stage == 1
    assert Reason.DRAFTS in {e.reason for e in dataflow.edges()}
