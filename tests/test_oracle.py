"""SmolLM2's greedy texts: the oracle's tokens, and one logits hash, however they are decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from replayer import compile_bundle
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.chat import ChatTemplate, encode_chat
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.engine import Engine
from strata_runtime.gguf_file import GgufFile
from strata_runtime.request import Request
from strata_runtime.tokenizer import Tokenizer

CASES = json.loads((Path(__file__).parent / "data" / "smollm2-greedy-f32.json").read_text())[
    "cases"
]
END = frozenset({2})
#: A logits hash for each case, as whichever test decoded it first found it.
HASHES: dict[int, str] = {}


@pytest.fixture(scope="module", params=[1, 2, 3])
def bundle(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """SmolLM2 in 1, 2 or 3 stages, four slots in two groups."""
    folder = tmp_path_factory.mktemp("bundle")
    keys = {"stages": request.param, "slots": 4, "groups": 2, "context": 256, "kv": "f32"}
    return compile_bundle(folder, smollm2, **keys)


@pytest.fixture(scope="module")
def device(bundle: Bundle) -> Iterator[CpuDevice]:
    """The bundle on the CPU device, one thread a stage."""
    device = CpuDevice(bundle, open_weights(bundle, bundle.folder), threads=1)
    yield device
    device.close()


def check(engine: Engine, cases: list[int]) -> None:
    """Decode these cases together; each gives the oracle's tokens and its one hash."""
    numbers = {}
    for i in cases:
        request = Request(0, tuple(CASES[i]["prompt_ids"]), 64, END)
        numbers[engine.submit(request)] = i
    texts: dict[int, list[int]] = {i: [] for i in cases}
    hashes: dict[int, str | None] = {}
    for update in engine.updates():
        i = numbers[update.request_id]
        texts[i] += update.tokens
        hashes[i] = update.logits_hash
    for i, found in hashes.items():
        assert texts[i] == CASES[i]["ids"], CASES[i]["prompt"]
        assert found is not None and HASHES.setdefault(i, found) == found, CASES[i]["prompt"]


@pytest.mark.parametrize("case", [2, 4])
def test_alone(bundle: Bundle, device: CpuDevice, case: int) -> None:
    """One request in an empty engine, its prompt in one chunk."""
    check(Engine(bundle.manifest, device), [case])


def test_in_company(bundle: Bundle, device: CpuDevice) -> None:
    """All six over four slots: the last two are admitted beside others that decode."""
    check(Engine(bundle.manifest, device), list(range(len(CASES))))


def test_in_other_company_and_other_chunks(bundle: Bundle, device: CpuDevice) -> None:
    """Other neighbours, prompts in chunks of 7, and slots that held other texts before."""
    engine = Engine(bundle.manifest, device, chunk_rows=7)
    for pair in ([4, 2], [2, 0]):
        check(engine, pair)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    """The vocabulary of the model's own file."""
    found = Tokenizer.from_metadata(GgufFile.open(smollm2).metadata)
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["prompt"][-30:])
def test_tokenizer(tokenizer: Tokenizer, case: dict[str, object]) -> None:
    """Every prompt gives its ids, and the ids give their text."""
    assert tokenizer.encode(str(case["prompt"])) == case["prompt_ids"]
    ids = case["ids"]
    assert isinstance(ids, list)
    assert tokenizer.decode(ids, skip_special=False) == case["text"]


def test_chat_template(smollm2: Path, tokenizer: Tokenizer) -> None:
    """The oracle's chat prompts come out of the file's own template."""
    template = ChatTemplate.from_metadata(GgufFile.open(smollm2).metadata, tokenizer)
    chats = [c for c in CASES if "<|im_start|>user" in c["prompt"]]
    assert len(chats) == 3
    for case in chats:
        question = case["prompt"].split("user\n")[1].split("<|im_end|>")[0]
        messages = [{"role": "user", "content": question}]
        assert encode_chat(tokenizer, template, messages) == case["prompt_ids"]
