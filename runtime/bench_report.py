"""What strata-bench says of its runs: JSON, tables for people, and times for a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rich.console import Group, RenderableType
from rich.table import Table

from strata_runtime.bench import Run, Setting, Text, named
from strata_runtime.bench_figures import (
    Figures,
    ProgramTimes,
    Record,
    combined,
    figures,
    program_ms,
    window_ms,
)
from strata_runtime.launch import Tokens

#: Digits after the point of rates and times.
DIGITS = 3


@dataclass(frozen=True)
class Result:
    """One setting: medians over its repeats, and each repeat's tokens/s.

    `identical` says whether every text of every repeat was that of the stream alone, bit for bit;
    None where that was not asked for.
    """

    setting: Setting
    figures: Figures
    each: tuple[float, ...]
    window_ms: Mapping[int, float]
    program_ms: ProgramTimes
    choice: str
    identical: bool | None


def result(setting: Setting, runs: Sequence[Run], identical: bool | None) -> Result:
    """One setting's repeats, summed up."""
    records = [run.record for run in runs]
    found = [figures(record) for record in records]
    each = tuple(f.tokens_per_s for f in found)
    times = window_ms(records), program_ms(records)
    return Result(setting, combined(found), each, *times, runs[-1].choice, identical)


def as_json(found: Result) -> dict[str, object]:
    """The result as the JSON object has it; see `Figures` for what the numbers say."""
    f = found.figures
    gap = f.longest_gap_ms
    items: dict[str, object] = {
        "drafts": named(found.setting.drafts),
        "groups": named(found.setting.groups),
        "identical": found.identical,
        "tokens_per_s": _rounded(f.tokens_per_s),
        "tokens_per_s_each": [_rounded(rate) for rate in found.each],
        "elapsed_s": _rounded(f.elapsed_s),
        "per_stream": [_rounded(rate) for rate in f.per_stream],
        "drafted": f.drafted,
        "accepted": f.accepted,
        "drafted_by_position": list(f.drafted_by_position),
        "accepted_by_position": list(f.accepted_by_position),
        "tokens_per_window": _rounded(f.tokens_per_window),
        "tokens_per_segment": _rounded(f.tokens_per_segment),
        "window_ms": {str(rows): _rounded(ms) for rows, ms in found.window_ms.items()},
        "program_ms": {
            f"{stage}.{kind}.r{rows}": _rounded(ms)
            for (stage, kind, rows), ms in found.program_ms.items()
        },
        "stage_busy": [_rounded(part) for part in f.stage_busy],
        "longest_gap_ms": None if gap is None else _rounded(gap),
        "host_us": _rounded(f.host_us),
        "choice": found.choice,
    }
    if f.prompt_tokens_per_s is not None:
        gap = f.longest_gap_beside_ms
        items["prompt_tokens_per_s"] = _rounded(f.prompt_tokens_per_s)
        items["longest_gap_beside_ms"] = None if gap is None else _rounded(gap)
    return items


def _rounded(value: float) -> float:
    return round(value, DIGITS)


def shown(found: Sequence[Result]) -> RenderableType:
    """The results for people: a table, then what the scheduler chose under each setting."""
    beside = found[0].figures.prompt_tokens_per_s is not None
    checked = found[0].identical is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = ["drafts", "groups", "tokens/s", "a stream", "tokens/\nwindow", "accepted/\ndrafted"]
    names += ["window ms\n(rows)", "stages\nbusy", "longest\ngap ms"]
    names += ["prompt\ntokens/s", "gap beside\nms"] * beside + ["identical"] * checked
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for one in found:
        table.add_row(*_cells(one))
    lines = [f"{one.setting}: {one.choice}" for one in found if one.choice]
    return Group(table, *(["", *lines] if lines else []))


def _cells(found: Result) -> list[str]:
    f = found.figures
    rates = f"{min(f.per_stream):.1f}-{max(f.per_stream):.1f}"
    cells = [
        str(named(found.setting.drafts)),
        str(named(found.setting.groups)),
        f"{f.tokens_per_s:.1f}",
        rates if len(f.per_stream) > 1 else f"{f.per_stream[0]:.1f}",
        f"{f.tokens_per_window:.2f}",
        f"{f.accepted}/{f.drafted}",
        ", ".join(f"{ms:.1f} ({rows})" for rows, ms in found.window_ms.items()),
        " ".join(f"{part:.0%}" for part in f.stage_busy),
        _number(f.longest_gap_ms),
    ]
    if f.prompt_tokens_per_s is not None:
        cells += [_number(f.prompt_tokens_per_s), _number(f.longest_gap_beside_ms)]
    if found.identical is not None:
        cells.append("yes" if found.identical else "NO")
    return cells


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def recorded(
    records: Sequence[Record], stages: int, prompts: Sequence[Tokens], texts: Sequence[Text]
) -> dict[str, object]:
    """What --record writes: the times that `strata-inspect --simulate` reads, and the texts.

    Every kind of program has its milliseconds by rows, for each stage in `stages`, and at the top
    as the mean over the stages that have run it.
    """
    own: list[dict[str, dict[str, float]]] = [{} for _ in range(stages)]
    every: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (stage, kind, rows), ms in program_ms(records).items():
        own[stage].setdefault(kind, {})[str(rows)] = _rounded(ms)
        every[kind][rows].append(ms)
    means = {
        kind: {str(rows): _rounded(fmean(curve[rows])) for rows in sorted(curve)}
        for kind, curve in every.items()
    }
    chances = [_rounded(chance) for chance in acceptance_by_position(records)]
    return {
        **means,
        "stages": own,
        **({"acceptance": chances} if chances else {}),
        "streams": len(prompts),
        "prompt_tokens": round(median(len(prompt) for prompt in prompts)),
        "max_tokens": len(texts[0].tokens),
        "texts": [
            {"prompt": list(prompt), "tokens": list(text.tokens), "logits_hash": text.logits_hash}
            for prompt, text in zip(prompts, texts, strict=True)
        ],
    }


def acceptance_by_position(records: Sequence[Record]) -> list[float]:
    """How often the first, second, ... draft held, where it was there and those before it held."""
    pairs = [(a.drafted, len(a.tokens) - 1) for r in records for a in r.arrivals]
    found: list[float] = []
    for i in range(max((drafted for drafted, _ in pairs), default=0)):
        judged = [accepted > i for drafted, accepted in pairs if drafted > i and accepted >= i]
        if not judged:
            break
        found.append(fmean(judged))
    return found
