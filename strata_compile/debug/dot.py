"""Programs as a graph: kernel calls, and the buffers through which results travel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import networkx as nx

from strata_compile.debug.costs import region_of, role_of, touched_bytes
from strata_kernels.spec import Region
from strata_runtime.bundle_format import Argument, Call, MemoryPlan, Program
from strata_runtime.bundle_load import Bundle

#: A kernel call: the stage, and its index in the stage's program.
CallId = tuple[int, int]


@dataclass(frozen=True)
class _Span:
    """Bytes `start` up to `end` of a buffer, last written by a call."""

    start: int
    end: int
    writer: CallId


def widest_exec(bundle: Bundle) -> tuple[Program, ...]:
    """Each stage's exec program with the most rows, in the order of the stages."""
    found: dict[int, Program] = {}
    for program in sorted(bundle.programs.values(), key=lambda p: (p.stage, p.rows)):
        if program.kind == "exec":
            found[program.stage] = program
    return tuple(found.values())


def call_graph(programs: Iterable[Program], memory: MemoryPlan) -> nx.DiGraph[CallId]:
    """Kernel calls of programs that run one after the other, one program a stage.

    Nodes have `kernel` and `program`. An edge leads from the last call that wrote some bytes to a
    call that reads them; `buffers` names what lies between, `tables` whether it is a table only.
    """
    graph: nx.DiGraph[CallId] = nx.DiGraph()
    spans: dict[str, list[_Span]] = {}
    for program in programs:
        for index, call in enumerate(program.calls):
            node = (program.stage, index)
            graph.add_node(node, kernel=call.kernel, program=program.name)
            for argument in call.args.values():
                if argument.reads is not None:
                    _read(graph, node, argument, spans.get(argument.buffer, []), memory)
            _write(spans, node, call)
    return graph


def _read(
    graph: nx.DiGraph[CallId],
    node: CallId,
    argument: Argument,
    spans: list[_Span],
    memory: MemoryPlan,
) -> None:
    start, end = _range(argument)
    role = role_of(argument.buffer, memory)
    for span in spans:
        if span.start < end and start < span.end:
            low, high = max(start, span.start), min(end, span.end)
            label = f"{argument.buffer}[{low}:{high}]" if role == "scratch" else argument.buffer
            edge = graph.get_edge_data(span.writer, node) or {"buffers": (), "tables": True}
            buffers = tuple(dict.fromkeys([*edge["buffers"], label]))
            tables = edge["tables"] and role == "tables"
            graph.add_edge(span.writer, node, buffers=buffers, tables=tables)


def _write(spans: dict[str, list[_Span]], node: CallId, call: Call) -> None:
    """Note what a call writes; what it writes as a whole hides what was there before."""
    for argument in call.args.values():
        if argument.writes is not None:
            start, end = _range(argument)
            before = spans.get(argument.buffer, [])
            if region_of(argument.writes) is Region.WHOLE:
                before = list(_without(before, start, end))
            spans[argument.buffer] = [*before, _Span(start, end, node)]


def _range(argument: Argument) -> tuple[int, int]:
    """The bytes of its buffer that an argument may reach."""
    return argument.offset, argument.offset + touched_bytes(argument, Region.WHOLE, 0, 0)


def _without(spans: list[_Span], start: int, end: int) -> Iterator[_Span]:
    for span in spans:
        if span.start < start:
            yield _Span(span.start, min(span.end, start), span.writer)
        if span.end > end:
            yield _Span(max(span.start, end), span.end, span.writer)


def to_dot(graph: nx.DiGraph[CallId]) -> str:
    """The graph in Graphviz' language, one cluster a stage; edges through a table are dotted."""
    lines = ["digraph programs {", "  node [shape=box];"]
    for stage, members in groupby(graph.nodes, key=lambda node: node[0]):
        lines += [f"  subgraph cluster_{stage} {{", *_cluster(graph, list(members)), "  }"]
    for source, target in graph.edges:
        edge = graph.edges[source, target]
        style = ", style=dotted, constraint=false" if edge["tables"] else ""
        label = _quoted("\n".join(edge["buffers"]))
        lines.append(f"  {_name(source)} -> {_name(target)} [label={label}{style}];")
    return "\n".join([*lines, "}", ""])


def _cluster(graph: nx.DiGraph[CallId], nodes: list[CallId]) -> Iterator[str]:
    stage, _ = nodes[0]
    title = f"stage {stage}: {graph.nodes[nodes[0]]['program']}"
    yield f"    label={_quoted(title)};"
    for node in nodes:
        label = f"{node[1]} {graph.nodes[node]['kernel']}"
        yield f"    {_name(node)} [label={_quoted(label)}];"


def _name(node: CallId) -> str:
    return f"s{node[0]}c{node[1]}"


def _quoted(text: str) -> str:
    """A string of Graphviz' language; a line break there is backslash n."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
