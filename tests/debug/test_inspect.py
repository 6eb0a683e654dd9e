"""strata-inspect: its numbers against sums by hand, its graph, its output, its errors."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import gguf_maker
from strata_compile import __version__
from strata_compile.debug import cli
from strata_compile.debug.costs import measure_bandwidth
from strata_compile.debug.describe import Inspection
from strata_compile.debug.dot import call_graph, to_dot, widest_exec
from strata_compile.debug.tables import printable
from strata_compile.passes import PassRunner
from strata_compile.pipeline import CompileOptions, compile_plan
from strata_kernels.spec import CHUNK
from strata_runtime.bundle_format import Manifest
from strata_runtime.bundle_load import load_bundle
from strata_runtime.records import decode

EMBEDDING, HEADS, KV_HEADS, FF, VOCAB, LAYERS = 48, 4, 2, 80, 133, 2
HEAD_DIM = EMBEDDING // HEADS
KV = KV_HEADS * HEAD_DIM
F32 = 4
#: Two norms, q and o, k and v, gate and up and down.
LAYER = 2 * EMBEDDING + 2 * EMBEDDING * EMBEDDING + 2 * KV * EMBEDDING + 3 * FF * EMBEDDING
ROTATION = 2 * (HEAD_DIM // 2)  # cos and sin of one position
HEAD = VOCAB * EMBEDDING + EMBEDDING  # with its norm
CONTEXT = 200
GIVEN = ["--bandwidth", "10"]
COMMAND = [sys.executable, "-c", "from strata_compile.debug.cli import main; exit(main())"]


def compile_tiny(folder: Path, plan: str = "", *, tied: bool = True) -> Path:
    """A bundle of the tiny model; the model file is gone when it is returned."""
    model = gguf_maker.write_tiny_llama(
        folder / "tiny.gguf", layers=LAYERS, embedding=EMBEDDING, ff=FF, vocab=VOCAB, tied=tied
    )
    text = f"model: tiny.gguf\nkv: f32\ncontext: {CONTEXT}\nprompt: {{sizes: [16, 64]}}\n{plan}"
    (folder / "plan.yaml").write_text(text)
    options = CompileOptions(bundle=folder / "bundle", cache=folder)
    bundle = compile_plan(folder / "plan.yaml", options, PassRunner())
    model.unlink()
    return bundle


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_tiny(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = "stages: 2\nslots: 4\ngroups: 4\n"
    return compile_tiny(tmp_path_factory.mktemp("two"), plan, tied=False)


def inspect(
    capsys: pytest.CaptureFixture[str], bundle: Path, *options: str
) -> tuple[Inspection, dict[tuple[int, str], Any]]:
    """What --json says: the record, and the programs as plain JSON by stage and name."""
    assert cli.main([str(bundle), "--json", *GIVEN, *options]) == 0
    text = capsys.readouterr().out
    plain = json.loads(text)
    found = decode(Inspection, plain, "stdout")
    return found, {(p["stage"], p["name"]): p for p in plain["programs"]}


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_tied_model_by_hand(capsys: pytest.CaptureFixture[str], one: Path, rows: int) -> None:
    _, programs = inspect(capsys, one)
    program = programs[0, f"exec.r{rows}"]
    # the head reads the whole embedding, so the rows' own lines of it are no further bytes
    weights = F32 * (LAYERS * LAYER + HEAD + rows * ROTATION)
    cell = F32 * (LAYERS * 2 * KV + 1)  # keys, values, and the token
    assert program["bytes"]["weights"] == {"read": weights, "written": 0}
    assert program["bytes"]["cells"] == {"read": CONTEXT * cell, "written": rows * cell}
    floor = weights + (CONTEXT + rows) * cell
    assert program["floor_bytes"] == floor
    assert program["floor_us"] == pytest.approx(floor / 10e9 * 1e6)
    assert program["total_bytes"] == sum(
        b["read"] + b["written"] for b in program["bytes"].values()
    )


@pytest.mark.parametrize("context", [1, 64, 150])
def test_stages_by_hand(capsys: pytest.CaptureFixture[str], two: Path, context: int) -> None:
    found, programs = inspect(capsys, two, "--context", str(context))
    layer, cell, rows = LAYER + 3 * ROTATION, F32 * 2 * KV, 3
    first, last = (programs[stage, "exec.r3"]["bytes"] for stage in (0, 1))
    assert first["weights"]["read"] == F32 * (rows * EMBEDDING + layer)
    assert last["weights"]["read"] == F32 * (layer + HEAD)
    assert first["cells"] == {"read": max(context, rows) * cell, "written": rows * cell}
    assert last["cells"]["written"] == rows * (cell + F32)
    assert first["contexts"] == {"read": 0, "written": F32 * rows * EMBEDDING}  # the hand-off
    verdict = F32 * 8 * 4
    assert last["contexts"] == {"read": F32 * rows * EMBEDDING, "written": 0}
    assert last["answers"] == {"read": 0, "written": verdict}
    copy = programs[0, "copy.r64"]["bytes"]
    assert copy["weights"] == {"read": 0, "written": 0}
    assert copy["cells"] == {"read": 64 * cell, "written": 64 * cell}
    assert found.context == context


def test_scratch_counts_every_access(capsys: pytest.CaptureFixture[str], two: Path) -> None:
    _, programs = inspect(capsys, two)
    wide, kv, ff = 8 * EMBEDDING, 8 * KV, 8 * FF  # every value has eight rows
    parts = 8 * -(-CONTEXT // CHUNK) * HEADS * (HEAD_DIM + 2)
    # the embedding, two norms, q, rotated q, merged parts, o and down are as wide as the model
    written = 8 * wide + 2 * kv + parts + ff
    # read twice: embedding and o; once: both norms, both q, merged parts, and the result, which is
    # handed off
    read = (2 * 2 + 6) * wide + 2 * kv + parts + ff
    scratch = programs[0, "exec.r2"]["bytes"]["scratch"]
    assert scratch == {"read": F32 * read, "written": F32 * written}


def test_kernel_calls(capsys: pytest.CaptureFixture[str], one: Path) -> None:
    _, programs = inspect(capsys, one)
    program = programs[0, "exec.r4"]
    per_layer = {"linear": 2, "linears": 1, "gated": 1, "rmsnorm": 2, "rope_store": 1}
    kernels = program["kernels"]
    for kernel, count in per_layer.items():
        ends = 1 if kernel in ("linear", "rmsnorm") else 0
        assert kernels[kernel] == LAYERS * count + ends
    assert kernels["take_table"] == kernels["embed"] == kernels["verdict"] == 1
    assert sum(kernels.values()) == program["nodes"]
    lines = (one / "programs" / "0.exec.r4.json").read_text().splitlines()
    assert program["nodes"] == sum('"kernel"' in line for line in lines)


def test_program_count_is_the_same_for_any_slots_and_groups(
    capsys: pytest.CaptureFixture[str], one: Path, tmp_path: Path
) -> None:
    few, _ = inspect(capsys, one)
    many, _ = inspect(capsys, compile_tiny(tmp_path, "slots: 4\ngroups: 4\n"))
    assert (few.slots, few.groups, many.slots, many.groups) == (1, 1, 4, 4)
    assert few.total_programs == many.total_programs == 8 + 2 + 1
    assert [(p.name, p.nodes) for p in few.programs] == [(p.name, p.nodes) for p in many.programs]


def test_stages_and_memory(capsys: pytest.CaptureFixture[str], two: Path) -> None:
    found, _ = inspect(capsys, two)
    assert [(s.first_layer, s.last_layer, s.programs) for s in found.stages] == [
        (0, 0, 11),
        (1, 1, 11),
    ]
    (memory,) = found.memory
    assert (memory.target, memory.device, memory.stages) == ("cpu", None, (0, 1))
    assert memory.device_bytes == sum(s.device_bytes for s in found.stages)
    host = memory.roles["ring"] + memory.roles["answers"]
    assert memory.host_bytes == sum(s.host_bytes for s in found.stages) == host
    assert sum(memory.roles.values()) == memory.device_bytes + memory.host_bytes
    cells = 4 * 4 * CHUNK * F32 * (LAYERS * 2 * KV + 1)  # slots, chunks
    assert memory.roles["cells"] == cells


def test_each_device_has_its_own_memory(
    capsys: pytest.CaptureFixture[str], two: Path, tmp_path: Path
) -> None:
    bundle = edited(two, tmp_path, lambda m: m["stages"][1].update(device="cuda:1"))
    found, _ = inspect(capsys, bundle)
    assert [(m.device, m.stages) for m in found.memory] == [(None, (0,)), ("cuda:1", (1,))]
    assert [m.device_bytes for m in found.memory] == [s.device_bytes for s in found.stages]


def test_graph_is_acyclic_and_follows_the_data(two: Path) -> None:
    bundle = load_bundle(two)
    programs = widest_exec(bundle)
    assert [(p.stage, p.name) for p in programs] == [(0, "exec.r8"), (1, "exec.r8")]
    graph = call_graph(programs, bundle.manifest.memory["cpu"])
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.number_of_nodes() == sum(len(p.calls) for p in programs)
    assert all(source < target for source, target in graph.edges)
    between = {
        (graph.nodes[a]["kernel"], graph.nodes[b]["kernel"]): graph.edges[a, b]["buffers"]
        for a, b in graph.edges
    }
    assert between["handoff_write", "handoff_read"] == ("0/handoff",)
    assert between["rope_store", "attention"][1:] == ("1/cells.k.1", "1/cells.v.1")
    assert re.fullmatch(r"1/scratch\[\d+:\d+\]", between["sample", "verdict"][0])
    assert ("take_table", "take_table") not in between
    for node in graph.nodes:
        kernel = graph.nodes[node]["kernel"]
        writers = {graph.nodes[a]["kernel"] for a in graph.predecessors(node)}
        if kernel == "swiglu":
            assert writers == {"linear"} and graph.in_degree(node) == 2
        if kernel == "rmsnorm":
            assert graph.in_degree(node) == 1


def test_dot_file(capsys: pytest.CaptureFixture[str], two: Path, tmp_path: Path) -> None:
    file = tmp_path / "graph.dot"
    inspect(capsys, two, "--dot", str(file))
    lines = file.read_text().splitlines()
    bundle = load_bundle(two)
    graph = call_graph(widest_exec(bundle), bundle.manifest.memory["cpu"])
    assert file.read_text() == to_dot(graph)
    assert (lines[0], lines[-1]) == ("digraph programs {", "}")
    assert sum(line.endswith("{") for line in lines) == sum(line.endswith("}") for line in lines)
    nodes = [
        m[1] for line in lines if (m := re.fullmatch(r'    (s\dc\d+) \[label="[^"]+"\];', line))
    ]
    edge = re.compile(r'  (s\dc\d+) -> (s\dc\d+) \[label="[^"]+"(, style=dotted, [^"]+)?\];')
    edges = [m for line in lines if (m := edge.fullmatch(line))]
    assert len(set(nodes)) == len(nodes) == graph.number_of_nodes()
    assert len(edges) == graph.number_of_edges()
    assert {name for m in edges for name in m.groups()[:2]} <= set(nodes)
    assert len(lines) == len(nodes) + len(edges) + 3 + 2 * 3  # head and foot, two clusters
    assert {"  subgraph cluster_0 {", "  subgraph cluster_1 {"} <= set(lines)


def test_dot_quotes_its_labels() -> None:
    graph: nx.DiGraph[tuple[int, int]] = nx.DiGraph()
    graph.add_node((0, 0), kernel='a"b\\', program="exec.r1")
    assert r's0c0 [label="0 a\"b\\"];' in to_dot(graph)


def test_tables(capsys: pytest.CaptureFixture[str], two: Path) -> None:
    assert cli.main([str(two), *GIVEN, "--context", "100"]) == 0
    text = capsys.readouterr().out
    _, programs = inspect(capsys, two, "--context", "100")
    assert "programs      22, whatever the slots, groups and ring entries" in text
    assert re.search(r"^0 +any device +0-0 +[\d,]+ +[\d,]+ +11$", text, re.MULTILINE)
    assert re.search(r"^cpu +any device +0, 1 +weights +[\d,]+ +\d+\.\d\d$", text, re.MULTILINE)
    floor = f"{programs[1, 'exec.r4']['floor_us']:.1f}"
    assert re.search(rf"^1 +exec\.r4 .* {re.escape(floor)}$", text, re.MULTILINE)
    assert re.search(r"^0 +exec\.r1 - exec\.r8 +take_table 1, embed 1, ", text, re.MULTILINE)
    assert "one slot with 100 tokens" in text and "10.0 GB/s (given)" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= cli.FILE_WIDTH
    weights = f"{programs[1, 'exec.r4']['bytes']['weights']['read'] / 1e6:.3f}"
    assert re.search(rf"^1 +exec\.r4 +\d+ +{re.escape(weights)} ", text, re.MULTILINE)


def test_bandwidth_is_measured_here(capsys: pytest.CaptureFixture[str], one: Path) -> None:
    assert cli.main([str(one), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["bandwidth_source"] == "measured on this machine"
    assert 0.1 < plain["bandwidth_gb_s"] < 1e5
    assert 0.1 < measure_bandwidth() < 1e5
    assert inspect(capsys, one)[0].bandwidth_source == "given"


def test_default_context_is_the_bundles_but_at_most_1024(
    capsys: pytest.CaptureFixture[str], one: Path, tmp_path: Path
) -> None:
    assert inspect(capsys, one)[0].context == CONTEXT
    long = edited(one, tmp_path, lambda m: m["shape"].update(context=4096))
    assert inspect(capsys, long)[0].context == 1024


def edited(bundle: Path, folder: Path, change: Callable[[Any], object]) -> Path:
    """A copy of a bundle whose manifest has been changed, and signed anew."""
    copy = folder / "edited"
    shutil.copytree(bundle, copy)
    value = json.loads((bundle / "manifest.json").read_text())
    change(value)
    manifest = decode(Manifest, value, "manifest")
    signed = dataclasses.replace(manifest, digest=manifest.own_digest())
    (copy / "manifest.json").write_text(signed.text())
    return copy


def check_fault(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """Exit code 2, nothing on stdout, and one line on stderr."""
    assert cli.main([*GIVEN, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("strata-inspect: ") and err.endswith("\n")
    assert len(err.splitlines()) == 1 and words in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(format=99), "format 99"),
        (lambda m: m["memory"].clear(), "no memory plan"),
        (lambda m: m["memory"]["cpu"]["buffers"].pop("0/table"), "0/table: the memory plan has no"),
        (lambda m: m["memory"]["cpu"]["arenas"].pop("0/cells"), "0/cells."),
        (lambda m: m["memory"]["cpu"]["arenas"]["0/cells"].update(stage=7), "stage 7, there are 1"),
        (lambda m: m["stages"][0]["programs"].append("exec.r9"), "lacks exec.r9"),
        (lambda m: m["files"].update({"programs/0.exec.r1.json": "0"}), "exec.r1.json has changed"),
    ],
)
def test_damaged_manifest(
    capsys: pytest.CaptureFixture[str],
    one: Path,
    tmp_path: Path,
    change: Callable[[Any], object],
    words: str,
) -> None:
    check_fault(capsys, [str(edited(one, tmp_path, change))], words)


def test_bad_arguments(capsys: pytest.CaptureFixture[str], one: Path, tmp_path: Path) -> None:
    check_fault(capsys, [str(tmp_path / "none")], "is not a bundle")
    check_fault(capsys, [str(one / "manifest.json")], "cannot be read")
    check_fault(capsys, [str(one), "--context", "0"], "--context: 0 is not from 1 to 200")
    check_fault(capsys, [str(one), "--context", "201"], "--context: 201")
    place = str(tmp_path / "no" / "graph.dot")
    check_fault(capsys, [str(one), "--dot", place], f"--dot {place}: cannot be written")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "fast"])
def test_bad_bandwidth(capsys: pytest.CaptureFixture[str], one: Path, value: str) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(one), f"--bandwidth={value}"])
    assert caught.value.code == 2
    assert f"'{value}' is not a bandwidth in GB/s" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.split() == ["strata-inspect", __version__]


def test_text_from_a_model_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31mé\n") == "a?[31mé?"


def test_needs_no_torch_and_no_model_file(one: Path) -> None:
    assert not (one.parent / "tiny.gguf").exists()
    code = (
        "import sys; from strata_compile.debug.cli import main; "
        f"code = main([{str(one)!r}, '--bandwidth', '10', '--dot', {os.devnull!r}]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "exec.r8" in done.stdout


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_leaves_ends_it_quietly(one: Path, options: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, str(one), *GIVEN, *options], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_is_full(one: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, str(one), *GIVEN], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.endswith(b"output cannot be written: No space left on device\n")


def test_an_output_that_lacks_letters_gets_question_marks(one: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*COMMAND, str(one), *GIVEN], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "?s" in done.stdout
