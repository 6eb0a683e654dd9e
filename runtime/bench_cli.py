"""strata-bench BUNDLE: equal texts under several settings, measured, and compared bit for bit."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from strata_runtime.bench import (
    Run,
    Runner,
    Setting,
    Text,
    difference,
    measure,
    replay,
    solo,
)
from strata_runtime.bench_figures import program_ms
from strata_runtime.bench_prompts import Encoder, file_prompts, own_prompts, random_prompt
from strata_runtime.bench_report import Result, as_json, recorded, result, shown
from strata_runtime.bundle_format import Manifest, Shape
from strata_runtime.bundle_load import Bundle, load_bundle, open_draft, open_weights
from strata_runtime.command import Parser, positive_int, run_command, thread_count, write_out
from strata_runtime.device import Device
from strata_runtime.devices import DEVICES, device_for, open_device
from strata_runtime.drafters import DEVICE_DRAFTERS, Drafter, acceptance
from strata_runtime.errors import OptionError, RequestError
from strata_runtime.launch import Sampling, Tokens
from strata_runtime.options import read_environment
from strata_runtime.request import Request, check_request

if TYPE_CHECKING:
    from strata_runtime.cuda_report import CardReport

NAME = "strata-bench"
#: Exit code where a text is not that of the stream alone.
NOT_IDENTICAL = 1
MAX_TOKENS, REPEATS = 64, 3
#: Columns of the table where the output is no terminal.
FILE_WIDTH = 140


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, 1 where texts differ, 2 where an input is at fault."""
    args = _parser().parse_args(argv)
    return run_command(NAME, lambda: _run(args))


def _parser() -> Parser:
    parser = Parser(NAME, description="Measures a bundle's streams under several settings.")
    add = parser.add_argument
    add("bundle", type=Path, metavar="BUNDLE", help="folder from strata-compile")
    add("--streams", type=positive_int, metavar="N", help="decode together (default: all slots)")
    add(
        "--drafts",
        type=_bounds(0),
        metavar="0,1,auto",
        help="most drafts of a slot, a run for each; auto: as the plan says, or the scheduler "
        "chooses (default 0,auto)",
    )
    add(
        "--groups",
        type=_bounds(1),
        default=(None,),
        metavar="G[,G2...]",
        help="windows in flight, a run for each (default auto: the scheduler chooses)",
    )
    add("--slots-per-window", type=positive_int, metavar="S", help="most slots of a window")
    add("--max-tokens", type=positive_int, default=MAX_TOKENS, metavar="M", help="of each stream")
    add("--repeats", type=positive_int, default=REPEATS, metavar="R", help="medians of R runs")
    add("--prompts", type=Path, metavar="FILE", help="JSON list, or .txt with one prompt a line")
    add("--prompt-beside", type=positive_int, metavar="TOKENS", help="a prompt read meanwhile")
    add("--replay", metavar="P", help="drafts that hold with probability P, or as 1101 says")
    add("--check-identity", action="store_true", help="compare with each stream alone")
    add("--record", type=Path, metavar="FILE", help="times for strata-inspect --simulate; texts")
    add("--temperature", type=float, default=0.0, metavar="T", help="default 0: greedy")
    add("--seed", type=int, default=0, metavar="S", help="of the first stream; default 0")
    add("--device", choices=DEVICES, help="default: cuda, where there is one")
    add("--threads", type=thread_count, metavar="N", help="for each stage")
    add("--model", type=Path, metavar="FILE", help="where the GGUF file is now")
    add("--json", action="store_true", help="one JSON object, nothing else")
    return parser


def _bounds(least: int) -> Callable[[str], tuple[int | None, ...]]:
    """A reader of numbers from `least` on, and auto, with commas between; each counts once."""

    def read(text: str) -> tuple[int | None, ...]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            number = word.isascii() and word.isdecimal() and len(word) < 10
            if word != "auto" and not (number and int(word) >= least):
                raise argparse.ArgumentTypeError(
                    f"{word!r} is neither auto nor a whole number of at least {least}"
                )
        return tuple(dict.fromkeys(None if word == "auto" else int(word) for word in words))

    return read


@dataclass(frozen=True)
class _Case:
    """What is to be run: settings, a request for each stream, and one beside them."""

    settings: tuple[Setting, ...]
    requests: tuple[Request, ...]
    beside: Request | None


@dataclass(frozen=True)
class _Measured:
    """What was run: runs by setting, the texts alone where they were wanted, the first fault."""

    runs: list[list[Run]]
    results: list[Result]
    texts: Sequence[Text]
    fault: str | None


def _run(args: argparse.Namespace) -> int:
    environment = read_environment()
    bundle = load_bundle(args.bundle)
    manifest = bundle.manifest
    settings = _settings(args, manifest.shape)
    gguf = open_weights(bundle, environment.cache, args.model)
    case = _case(args, manifest, settings, Encoder(gguf.metadata))
    draft = open_draft(bundle, environment.cache)
    args.device = device_for(bundle, args.device)
    device = open_device(args.device, bundle, gguf, draft, args.threads or environment.threads)
    try:
        found = _measure(args, manifest, device, case)
        card = _card(args, bundle, device, found)
    finally:
        device.close()
    if args.record is not None:
        _record(args.record, case, found, len(manifest.stages))
    _report(args, case, found.results, card)
    if found.fault is not None:
        sys.stderr.write(f"{NAME}: {found.fault}\n")
        return NOT_IDENTICAL
    return 0


def _card(
    args: argparse.Namespace, bundle: Bundle, device: Device, found: _Measured
) -> CardReport | None:
    """What programs and kernels cost, where the device is a card."""
    if args.device != "cuda":
        return None
    from strata_runtime.cuda_device import CudaDevice  # torch, and the driver
    from strata_runtime.cuda_report import card_report

    assert isinstance(device, CudaDevice)
    times = program_ms(run.record for runs in found.runs for run in runs)
    return card_report(bundle, device, times)


def _settings(args: argparse.Namespace, shape: Shape) -> tuple[Setting, ...]:
    """The settings to compare; OptionError for one that the bundle does not allow."""
    depth = shape.draft_depth
    drafts = args.drafts or ((0, None) if depth else (0,))
    if (most := max(d or 0 for d in drafts)) > depth:
        raise OptionError(f"--drafts: {most} is more than {depth}, the bundle's draft depth")
    if (most := max(g or 1 for g in args.groups)) > shape.groups:
        raise OptionError(f"--groups: {most} is more than {shape.groups}, the bundle's groups")
    slots, limit = args.slots_per_window, min(shape.slots, shape.row_limit)
    if slots is not None and slots > limit:
        raise OptionError(f"--slots-per-window: {slots} is more than {limit}, the bundle's most")
    _check_streams(args, shape)
    if args.replay is not None:
        _check_replay(args.replay, shape)
    if args.record is not None and (args.record.is_dir() or not args.record.parent.is_dir()):
        raise OptionError(f"--record {args.record}: no file can be written there")
    return tuple(Setting(d, g, slots) for g in args.groups for d in drafts)


def _check_streams(args: argparse.Namespace, shape: Shape) -> None:
    beside = args.prompt_beside is not None
    if args.streams is None:
        args.streams = max(1, shape.slots - beside)
    if args.streams > shape.slots:
        raise OptionError(
            f"--streams: {args.streams} is more than {shape.slots}, the bundle's slots"
        )
    if beside and args.streams == shape.slots:
        raise OptionError(
            f"--prompt-beside needs a free slot: the bundle has {shape.slots}, and --streams "
            f"{args.streams} takes all"
        )
    if beside and args.prompt_beside > shape.context:
        raise OptionError(
            f"--prompt-beside: {args.prompt_beside} is more than {shape.context}, the bundle's "
            "context"
        )


def _check_replay(spec: str, shape: Shape) -> None:
    way_out = "compile with draft: {kind: ngram, depth: N}"
    if shape.drafter in DEVICE_DRAFTERS:
        raise OptionError(f"--replay: the bundle's {shape.drafter} layer drafts; {way_out}")
    if not shape.draft_depth:
        raise OptionError(f"--replay: the bundle has no room for drafts; {way_out}")
    try:
        acceptance(spec)
    except OptionError as error:
        raise OptionError(f"--replay: {error}") from error


def _case(
    args: argparse.Namespace, manifest: Manifest, settings: tuple[Setting, ...], encoder: Encoder
) -> _Case:
    """The requests; OptionError for a prompt that cannot be served or leaves too little room."""
    vocab, context = manifest.model.vocab, manifest.shape.context
    prompts = own_prompts(encoder, vocab)
    if args.prompts is not None:
        prompts = file_prompts(args.prompts, encoder)
    requests = []
    for i in range(args.streams):
        sampling = Sampling(temperature=args.temperature, seed=args.seed + i)
        index = i % len(prompts)
        request = Request(0, prompts[index], args.max_tokens, sampling=sampling)
        try:
            check_request(request, vocab=vocab, context=context)
        except RequestError as error:
            raise OptionError(f"stream {i}: {error}") from error
        if (room := context + 1 - len(request.prompt)) < args.max_tokens:
            raise OptionError(
                f"--max-tokens: {args.max_tokens} is more than {room}, what the context of "
                f"{context} holds behind the prompt of stream {i}"
            )
        requests.append(request)
    beside = None
    if args.prompt_beside is not None:
        beside = Request(0, random_prompt(args.prompt_beside, vocab, args.seed), 1)
    return _Case(settings, tuple(requests), beside)


def _measure(
    args: argparse.Namespace, manifest: Manifest, device: Device, case: _Case
) -> _Measured:
    """Each stream alone where that is needed, then every setting, compared with it."""
    alone: Sequence[Text] | None = None
    if args.check_identity or args.replay is not None:
        alone = solo(manifest, device, case.requests)
    drafter: Callable[[Request], Drafter] | None = None
    if args.replay is not None:
        assert alone is not None
        drafter = replay(case.requests, alone, manifest.model.vocab, args.replay)
    runners = [Runner(manifest, device, setting, drafter) for setting in case.settings]
    runs = measure(runners, case.requests, args.repeats, case.beside)
    results, faults = [], list[str]()
    for setting, mine in zip(case.settings, runs, strict=True):
        wrong = _differences(setting, mine, alone) if args.check_identity and alone else None
        faults += wrong or []
        results.append(result(setting, mine, None if wrong is None else not wrong))
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return _Measured(runs, results, alone or runs[0][0].texts, faults[0] + more if faults else None)


def _differences(setting: Setting, runs: Sequence[Run], alone: Sequence[Text]) -> list[str]:
    """A line for each text of each run that is not that of the stream alone."""
    pairs = [(i, text, alone[i]) for run in runs for i, text in enumerate(run.texts)]
    found = [(i, difference(text, wanted)) for i, text, wanted in pairs]
    return [f"{setting}: stream {i}: {why}" for i, why in found if why is not None]


def _record(path: Path, case: _Case, found: _Measured, stages: int) -> None:
    records = [run.record for runs in found.runs for run in runs]
    prompts: list[Tokens] = [request.prompt for request in case.requests]
    value = recorded(records, stages, prompts, found.texts)
    try:
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--record {path}: cannot be written: {error.strerror}") from error


def _report(
    args: argparse.Namespace, case: _Case, results: Sequence[Result], card: CardReport | None
) -> None:
    if args.json:
        head: dict[str, object] = {
            "bundle": str(args.bundle),
            "device": args.device,
            "streams": len(case.requests),
            "max_tokens": args.max_tokens,
            "repeats": args.repeats,
            "slots_per_window": args.slots_per_window,
            "replay": args.replay,
            "prompt_beside": args.prompt_beside,
        }
        more = {} if card is None else {"card": card.as_json()}
        runs = [as_json(one) for one in results]
        write_out(json.dumps({**head, "runs": runs, **more}, indent=1) + "\n")
        return
    terminal, text = sys.stdout.isatty(), io.StringIO()
    width = None if terminal else FILE_WIDTH
    console = Console(file=text, force_terminal=terminal, width=width, markup=False, emoji=False)
    console.print(shown(results), highlight=False)
    if card is not None:
        hosts = [one.figures.host_us for one in results]
        console.print("", card.tables(hosts), highlight=False)
    write_out(text.getvalue())
