"""The plan's `draft`: what it may say, and what is said of it where it cannot be."""

import json

import pytest

from plan_case import check_report, fault, parse
from strata_compile.errors import PlanError
from strata_compile.plan.check import check_draft
from strata_compile.plan.schema import DraftSpec


@pytest.mark.parametrize(
    ("text", "spec", "said"),
    [
        ("ngram", DraftSpec("ngram", 7, True), {"depth": "auto"}),
        ("{kind: ngram, depth: 7}", DraftSpec("ngram", 7), {"depth": 7}),
        ("mtp", DraftSpec("mtp", 7, True), {"depth": "auto", "min_p": 0.0}),
        ("{kind: mtp, depth: 1}", DraftSpec("mtp", 1), {"depth": 1, "min_p": 0.0}),
        (
            "{kind: mtp, model: x.gguf, depth: auto}",
            DraftSpec("mtp", 7, True, "x.gguf"),
            {"depth": "auto", "model": "x.gguf", "min_p": 0.0},
        ),
        ("none", DraftSpec("none"), {}),
    ],
)
def test_drafts(text: str, spec: DraftSpec, said: dict[str, object]) -> None:
    """The scheduler chooses the depth unless the plan does; a layer may be in the model's file."""
    plan = parse(f"model: m\ncontext: 64\ndraft: {text}\n")
    assert plan.draft == spec
    assert plan.to_json()["draft"] == {"kind": spec.kind, **said}
    assert parse(json.dumps(plan.to_json())) == plan


# name: (plan, line, field path, words of the message); `m` stands for a sound first line.
BROKEN: dict[str, tuple[str, int, str, str]] = {
    "draft key": ("m\ndraft: {knd: none}\n", 2, "draft.knd", "did you mean 'kind'?"),
    "min_p": ("m\ndraft: {kind: mtp, model: x, min_p: 2}\n", 2, "draft.min_p", "from 0 to 1|2"),
    "negative min_p": ("m\ndraft: {kind: mtp, min_p: -0.1}\n", 2, "draft.min_p", "from 0 to 1"),
    "min_p in words": ("m\ndraft: {kind: mtp, min_p: low}\n", 2, "draft.min_p", "number|'low'"),
    "ngram depth": ("m\ndraft: {kind: ngram, depth: 8}\n", 2, "draft.depth", "between 1 and 7|8"),
    "no depth": ("m\ndraft: {kind: mtp,\n depth: 0}\n", 3, "draft.depth", "between 1 and 7|0"),
    "depth in words": ("m\ndraft: {kind: mtp, depth: all}\n", 2, "draft.depth", "auto|1 to 7|all"),
    "half a depth": ("m\ndraft: {kind: mtp, depth: 1.5}\n", 2, "draft.depth", "whole|1.5"),
    "no vocab": ("m\ndraft: {kind: mtp, vocab: 0}\n", 2, "draft.vocab", "between 1 and|'0'"),
    "draft model empty": ("m\ndraft: {kind: mtp, model: }\n", 2, "draft.model", "found nothing"),
    "draft package": (
        "m\ndraft: {kind: mtp, model: package:x}\n", 2, "draft.model", "package:NAME/FILE",
    ),
    "ngram min_p": ("m\ndraft: {kind: ngram, min_p: 0.5}\n", 2, "draft.min_p", "no effect|ngram"),
    "draft kind": ("m\ndraft:\n  kind: mpt\n", 3, "draft.kind", "did you mean 'mtp'?"),
    "draft word": ("m\ndraft: nune\n", 2, "draft", "did you mean 'none'?"),
    "draft is a truth value": ("m\ndraft: off\n", 2, "draft", "one of none, mtp, ngram|'off'"),
    "draft depth": ("m\ndraft: {kind: none,\n depth: 2}\n", 3, "draft.depth", "no effect|none"),
    "draft without kind": ("m\ndraft: {vocab: 9}\n", 2, "draft.vocab", "no effect"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_drafts(name: str) -> None:
    text, line, field, words = BROKEN[name]
    check_report(fault(text.replace("m\n", "model: m\n", 1)), line, field, words)


@pytest.mark.parametrize(
    ("text", "nextn_layers", "line", "field", "words"),
    [
        ("\ndraft: mtp\n", 0, 3, "draft", "no MTP layer|'model: FILE'|'kind: ngram'"),
        ("draft:\n kind: mtp\n", 0, 2, "draft", "no MTP layer"),
        ("draft: mtp\n", 3, 2, "draft", "3 MTP layers|with one|'kind: ngram'"),
        ("draft: {kind: mtp,\n vocab: 134}\n", 1, 3, "draft.vocab", "134 tokens|133"),
        ("draft: {kind: mtp, model: x, vocab: 134}\n", None, 2, "draft.vocab", "134 tokens|133"),
    ],
)
def test_drafter_against_a_model(
    text: str, nextn_layers: int | None, line: int, field: str, words: str
) -> None:
    with pytest.raises(PlanError) as caught:
        check_draft(parse("model: m\n" + text), vocab=133, nextn_layers=nextn_layers)
    check_report(caught.value, line, field, words)
