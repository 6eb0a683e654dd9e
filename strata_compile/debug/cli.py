"""strata-inspect BUNDLE: what a bundle holds, and the least time that its programs can take."""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from strata_compile import __version__
from strata_compile.debug.costs import measure_bandwidth
from strata_compile.debug.describe import (
    USUAL_CONTEXT,
    Inspection,
    Question,
    inspect_bundle,
    memory_of,
)
from strata_compile.debug.dot import call_graph, to_dot, widest_exec
from strata_compile.debug.tables import tables
from strata_runtime.bundle_load import Bundle, load_bundle
from strata_runtime.command import Parser, run_command, write_out
from strata_runtime.errors import OptionError
from strata_runtime.options import read_environment
from strata_runtime.records import encode

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
    bundle = load_bundle(options.bundle)
    context = _context(options.context, bundle)
    measured = options.bandwidth is None
    bandwidth = measure_bandwidth() if measured else options.bandwidth
    source = "measured on this machine" if measured else "given"
    target = options.target or bundle.manifest.targets[0]
    found = inspect_bundle(bundle, Question(target, context, bandwidth, source))
    if options.dot is not None:
        _write_dot(options.dot, bundle, target)
    write_out(json.dumps(encode(found), indent=1) + "\n" if options.json else _text(found))
    return 0


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


def _text(found: Inspection) -> str:
    """The tables, as wide as the terminal; FILE_WIDTH columns where there is none."""
    terminal, text = sys.stdout.isatty(), io.StringIO()
    width = None if terminal else FILE_WIDTH
    console = Console(file=text, force_terminal=terminal, width=width, markup=False, emoji=False)
    console.print(tables(found), highlight=False)
    return text.getvalue()
