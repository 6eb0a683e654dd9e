"""strata-compile PLAN -o BUNDLE."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from strata_compile import __version__
from strata_runtime.command import Parser, run_command

NAME = "strata-compile"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    from strata_compile.pipeline import PASSES

    parser = Parser(NAME, description="Compiles a plan into a bundle.")
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a plan.yaml")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE")
    parser.add_argument("--until", choices=PASSES, metavar="PASS", help=", ".join(PASSES))
    parser.add_argument("--dump", type=Path, metavar="DIR", help="what each pass made")
    parser.add_argument("--embed-weights", action="store_true", help="copy the model in")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    args = parser.parse_args(argv)
    return run_command(NAME, lambda: _compile(args))


def _compile(args: argparse.Namespace) -> int:
    from strata_compile.passes import PassRunner, Stopped
    from strata_compile.pipeline import PASSES, CompileOptions, compile_plan
    from strata_compile.progress import Progress
    from strata_runtime.options import read_environment

    environment = read_environment()
    options = CompileOptions(
        args.output, environment.cache, args.embed_weights, environment.no_compile
    )
    until = args.until or PASSES[-1]
    with Progress(PASSES[: PASSES.index(until) + 1]) as progress:
        runner = PassRunner(args.dump or environment.dump, args.until, progress.done)
        try:
            bundle = compile_plan(args.plan, options, runner)
        except Stopped:
            return 0
    total = sum(runner.seconds.values())
    sys.stderr.write(f"{bundle}: compiled in {total:.2f} s\n")
    return 0
