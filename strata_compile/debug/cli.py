"""strata-inspect BUNDLE: what a bundle holds, and the least time that its programs can take."""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType

from strata_compile import __version__
from strata_compile.debug.costs import measure_bandwidth
from strata_compile.debug.describe import (
    USUAL_CONTEXT,
    Question,
    inspect_bundle,
    memory_of,
)
from strata_compile.debug.dot import call_graph, to_dot, widest_exec
from strata_compile.debug.simulate import simulate, simulation_tables
from strata_compile.debug.tables import tables
from strata_runtime.bundle_load import Bundle, load_bundle
from strata_runtime.command import Parser, run_command, write_out
from strata_runtime.errors import OptionError
from strata_runtime.options import read_environment
from strata_runtime.records import encode
from strata_runtime.times import read_times
from strata_runtime.trace import Trace

NAME = "strata-inspect"

#: Columns of the tables where the output is no terminal.
FILE_WIDTH = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Run strata-inspect; returns its exit code: 0, or 2 where an input is at fault."""
    options = _parser().parse_args(argv)
    return run_command(NAME, lambda: _inspect(options))


def _parser() -> Parser:
    parser = Parser(NAME, description=__doc__)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument("--target", metavar="NAME", help="whose memory to count (default: first)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--dot", type=Path, metavar="FILE", help="write each stage's widest exec for Graphviz"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"tokens of the slot whose rows run (default: the bundle's, at most {USUAL_CONTEXT})",
    )
    parser.add_argument(
        "--bandwidth",
        type=_bandwidth,
        metavar="GB/s",
        help="memory bandwidth of the device (default: this machine's, measured)",
    )
    parser.add_argument(
        "--simulate",
        type=Path,
        metavar="TIMES",
        help="run the schedule on a clock instead, with a JSON file of milliseconds by kind and "
        "rows",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the simulated launches for Perfetto"
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    return parser


def _bandwidth(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1e-3 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a bandwidth in GB/s")
    return value


def _inspect(options: argparse.Namespace) -> int:
    read_environment()
    _check_options(options)
    bundle = load_bundle(options.bundle)
    if options.simulate is not None:
        return _simulate(options, bundle)
    context = _context(options.context, bundle)
    measured = options.bandwidth is None
    bandwidth = measure_bandwidth() if measured else options.bandwidth
    source = "measured on this machine" if measured else "given"
    target = options.target or bundle.manifest.targets[0]
    found = inspect_bundle(bundle, Question(target, context, bandwidth, source))
    if options.dot is not None:
        _write_dot(options.dot, bundle, target)
    _write(options, found, tables(found))
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """OptionError for options that do not go together."""
    if options.simulate is None and options.trace is not None:
        raise OptionError("--trace: needs --simulate")
    for name in ("target", "dot", "context", "bandwidth"):
        if options.simulate is not None and getattr(options, name) is not None:
            raise OptionError(f"--{name}: does not go with --simulate")


def _simulate(options: argparse.Namespace, bundle: Bundle) -> int:
    trace = Trace()
    found = simulate(bundle.manifest, read_times(options.simulate), observe=trace.add)
    if options.trace is not None:
        trace.write(options.trace)
    _write(options, found, simulation_tables(found))
    return 0


def _write(options: argparse.Namespace, found: object, shown: RenderableType) -> None:
    """A record as JSON, or what is shown of it to people."""
    write_out(json.dumps(encode(found), indent=1) + "\n" if options.json else _text(shown))


def _context(given: int | None, bundle: Bundle) -> int:
    most = bundle.manifest.shape.context
    if given is None:
        return min(most, USUAL_CONTEXT)
    if not 1 <= given <= most:
        raise OptionError(f"--context: {given} is not from 1 to {most}, the bundle's context")
    return given


def _write_dot(path: Path, bundle: Bundle, target: str) -> None:
    graph = call_graph(widest_exec(bundle), memory_of(bundle.manifest, target))
    try:
        path.write_text(to_dot(graph), encoding="utf-8", errors="replace")
    except OSError as error:
        raise OptionError(f"--dot {path}: cannot be written: {error.strerror}") from error


def _text(shown: RenderableType) -> str:
    """The tables, as wide as the terminal; FILE_WIDTH columns where there is none."""
    terminal, text = sys.stdout.isatty(), io.StringIO()
    width = None if terminal else FILE_WIDTH
    console = Console(file=text, force_terminal=terminal, width=width, markup=False, emoji=False)
    console.print(shown, highlight=False)
    return text.getvalue()
