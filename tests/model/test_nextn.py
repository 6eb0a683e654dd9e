"""NextN layers: in the model's file or one of their own, and what each unfit file is told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_changes import Keys, Tensors, norms, write_changed
from gguf_maker import vocabulary, write_tiny_llama, write_tiny_nextn
from strata_compile.model.build import build_model
from strata_compile.model.companion import check_companion
from strata_compile.model.graph import ModelGraph
from strata_compile.model.nextn import LOGITS, build_drafter
from strata_compile.model.ops import Attention, Embed, Linear, RmsNorm, Tensor, weights_of
from strata_compile.model.tensors import TensorReader
from strata_runtime.errors import ModelError
from strata_runtime.gguf_file import GgufFile

WIDTH, VOCAB, HEAD_DIM = 48, 133, 12
BLOCK = "blk.2"
EMBED, HEAD, NORM = (
    f"{BLOCK}.nextn.{name}.weight"
    for name in ("embed_tokens", "shared_head_head", "shared_head_norm")
)


def own(path: Path, vocab: int | None = None) -> tuple[ModelGraph, ModelGraph]:
    """Trunk and drafter of one file."""
    gguf = GgufFile.open(path)
    trunk = build_model(gguf)
    drafter = build_drafter(TensorReader(gguf, "llama"), trunk, vocab, file="model")
    trunk.verify()
    drafter.verify()
    return trunk, drafter


def follow(draft: Path, model: Path, vocab: int | None = None) -> ModelGraph:
    """The drafter of a file for itself."""
    file, trunk = GgufFile.open(draft), build_model(GgufFile.open(model))
    check_companion(file, GgufFile.open(model), trunk)
    drafter = build_drafter(TensorReader(file, "llama"), trunk, vocab)
    drafter.verify()
    return drafter


def files(graph: ModelGraph) -> dict[str, str]:
    """Each weight's file by its name."""
    return {w.name: w.file for node in graph for w in weights_of(node.op)}


def attention(graph: ModelGraph) -> Attention:
    """The first one."""
    return next(node.op for node in graph if isinstance(node.op, Attention))


def test_one_file_or_two_are_one_drafter(tmp_path: Path) -> None:
    """The same values, operators and shapes; only the tensors' file differs."""
    one = write_tiny_llama(tmp_path / "one.gguf", nextn_seed=1)
    two = write_tiny_llama(tmp_path / "two.gguf")
    layer = write_tiny_nextn(tmp_path / "layer.gguf", seed=1)
    whole, block = GgufFile.open(one), GgufFile.open(layer)
    for name in block.tensors:
        assert np.array_equal(whole.raw(name), block.raw(name))
    trunk, drafter = own(one)
    assert trunk.describe() == build_model(GgufFile.open(two)).describe().replace("two", "one")
    assert drafter.describe() == follow(layer, two).describe()
    assert set(files(drafter).values()) == {"model"}
    shared = {"token_embd.weight"}
    assert {n: f for n, f in files(follow(layer, two)).items() if f == "model"}.keys() == shared


def test_block_count_counts_the_layer(tmp_path: Path) -> None:
    trunk, drafter = own(write_tiny_llama(tmp_path / "tiny.gguf", nextn_seed=1))
    assert trunk.info.layers == 2
    assert {node.layer for node in drafter} == {2}
    assert not any("nextn" in name for name in files(trunk))
    assert (
        files(trunk).keys() | files(drafter).keys()
        == GgufFile.open(tmp_path / "tiny.gguf").tensors.keys()
    )


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_layers_that_no_drafter_uses_are_left_alone(tmp_path: Path, layers: int) -> None:
    """As many as the file says, whatever their blocks hold, or with no tensor at all."""
    keys: Keys = {"llama.block_count": 2 + layers, "llama.nextn_predict_layers": layers}
    tensors = {f"blk.{2 + i}.nextn.other.weight": norms(3) for i in range(layers)}
    for extra in (tensors, {}):
        graph = build_model(GgufFile.open(write_changed(tmp_path / "tiny.gguf", keys, extra)))
        assert graph.info.layers == 2


@pytest.mark.parametrize("blocks", [(1 << 31) - 1, 5])
def test_a_block_behind_the_nextn_layers_is_unknown(tmp_path: Path, blocks: int) -> None:
    """However many the file claims, at once."""
    keys: Keys = {"llama.block_count": blocks, "llama.nextn_predict_layers": blocks - 2}
    name = f"blk.{blocks}.x.weight"
    with pytest.raises(ModelError, match=f"{re.escape(name)}'? is unknown to llama"):
        build_model(GgufFile.open(write_changed(tmp_path / "t.gguf", keys, {name: norms(1)})))


def random(*shape: int) -> np.ndarray:
    """Values that are nobody else's."""
    return np.random.default_rng(5).standard_normal(shape, np.float32)


@pytest.mark.parametrize("vocab", [None, 40])
def test_a_layer_with_tables_of_its_own(tmp_path: Path, vocab: int | None) -> None:
    """Its embedding, and its head, of which it may use the first rows."""
    tables = {EMBED: random(VOCAB, WIDTH), HEAD: random(VOCAB, WIDTH)}
    one = write_changed(tmp_path / "one.gguf", tensors=tables, nextn_seed=1)
    layer = write_changed(tmp_path / "layer.gguf", tensors=tables, write=write_tiny_nextn)
    two = write_tiny_llama(tmp_path / "two.gguf", tied=False)
    found = {"model": own(one, vocab)[1], "draft": follow(layer, two, vocab)}
    for file, drafter in found.items():
        embedding, head = drafter["draft.embedding"].op, drafter[LOGITS].op
        assert embedding == Embed(Tensor(EMBED, "F32", (VOCAB, WIDTH), file))
        assert head == Linear(Tensor(HEAD, "F32", (vocab or VOCAB, WIDTH), file))
        assert drafter.info.vocab == (vocab or VOCAB)


def test_a_layer_without_a_last_norm_has_the_trunks(tmp_path: Path) -> None:
    trunk, drafter = own(write_changed(tmp_path / "tiny.gguf", tensors={NORM: None}, nextn_seed=1))
    mine, theirs = drafter["draft.output_norm"].op, trunk["output_norm"].op
    assert isinstance(mine, RmsNorm) and isinstance(theirs, RmsNorm)
    assert mine.weight == theirs.weight == Tensor("output_norm.weight", "F32", (WIDTH,))


def test_biases_of_a_layer(tmp_path: Path) -> None:
    tensors = {f"{BLOCK}.attn_q.bias": norms(WIDTH)}
    _, drafter = own(write_changed(tmp_path / "tiny.gguf", tensors=tensors, nextn_seed=1))
    op = drafter["draft.attn_q"].op
    assert isinstance(op, Linear) and op.bias == Tensor(f"{BLOCK}.attn_q.bias", "F32", (WIDTH,))


def test_heads_and_hidden_width_are_the_layers_own(tmp_path: Path) -> None:
    """Its cells are its own; the rotation, which is the trunk's, needs heads of one length."""
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    layer = write_tiny_nextn(tmp_path / "layer.gguf", kv_heads=4, ff=32)
    drafter = follow(layer, model)
    assert (attention(drafter).heads, attention(drafter).kv_heads) == (4, 4)
    assert drafter["draft.ffn_act"].width == 32


def test_rope_factors_are_the_trunks(tmp_path: Path) -> None:
    """A drafter's file may leave them out, and may not have others."""
    factors = {"rope_freqs.weight": norms(HEAD_DIM // 2)}
    model = write_changed(tmp_path / "tiny.gguf", tensors=factors)
    plain = write_tiny_nextn(tmp_path / "plain.gguf")
    same = write_changed(tmp_path / "same.gguf", tensors=factors, write=write_tiny_nextn)
    for layer in (plain, same):
        assert attention(follow(layer, model)) == attention(build_model(GgufFile.open(model)))
    other = write_changed(
        tmp_path / "other.gguf",
        tensors={"rope_freqs.weight": 2 * norms(HEAD_DIM // 2)},
        write=write_tiny_nextn,
    )
    for layer, trunk in ((other, model), (same, write_tiny_llama(tmp_path / "none.gguf"))):
        with pytest.raises(ModelError, match=r"rope_freqs\.weight is not the model's"):
            follow(layer, trunk)


@dataclass(frozen=True)
class Unfit:
    """A change to the tiny layer, and what the message must say."""

    pattern: str
    keys: Keys = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)
    architecture: str = "llama"


def key(name: str, value: Any, pattern: str) -> Unfit:
    return Unfit(pattern, {f"llama.{name}": value})


def tensor(name: str, values: Any, pattern: str) -> Unfit:
    return Unfit(pattern, tensors={f"{BLOCK}.{name}": values})


UNFIT = {
    "architecture": Unfit(r"architecture is 'mamba', the model's is 'llama'", architecture="mamba"),
    "width": Unfit(r"embedding_length is 24, the model's is 48: of", tiny={"embedding": 24}),
    "vocabulary": Unfit(r"vocab_size is 99, the model's is 133: of another", tiny={"vocab": 99}),
    "layers": Unfit(r"layers before it is 3, the model's is 2: of another", tiny={"layers": 3}),
    "heads": Unfit(r"dimension_count is 6, the model's is 12: of", tiny={"heads": 8}),
    "no nextn layer": key("nextn_predict_layers", None, r"not a file of one MTP layer.* is 0"),
    "two nextn layers": key("nextn_predict_layers", 2, r"not a file of one MTP layer.* is 2"),
    "rope base": key("rope.freq_base", 5e5, r"freq_base is 500000\.0, the model's is 10000\.0"),
    "rope scale": key("rope.scaling.factor", 4.0, r"rope scale is 0\.25, the model's is 1\.0"),
    "yarn": key("rope.scaling.type", "yarn", r"rope scaling 'yarn' is not supported"),
    "experts": key("expert_count", 8, r"llama\.expert_count'? is set, which llama here does not"),
    "no hidden width": key("feed_forward_length", None, r"feed_forward_length' is missing"),
    "no projection": tensor("nextn.eh_proj.weight", None, r"eh_proj\.weight is missing"),
    "no norm": tensor("nextn.enorm.weight", None, r"enorm\.weight is missing; the nearest is"),
    "no attention": tensor("attn_q.weight", None, r"attn_q\.weight is missing"),
    "projection": tensor("nextn.eh_proj.weight", norms(48, 48), r"48 × 48, expected 48 × 96"),
    "last norm": tensor("nextn.shared_head_norm.weight", norms(9), r"norm.* is 9, expected 48"),
    "head": tensor("nextn.shared_head_head.weight", norms(9, 48), r"is 9 × 48, expected 133 × 48"),
    "embedding": tensor("nextn.embed_tokens.weight", norms(133, 9), r"133 × 9, expected 133 × 48"),
    "keys": tensor("attn_k.weight", norms(48, 48), r"attn_k.* is 48 × 48, expected 24 × 48"),
    "unknown": tensor("nextn.other.weight", norms(3), r"nextn\.other\.weight'? is unknown to"),
    "integers": tensor("ffn_up.weight", np.ones((80, 48), np.int32), r"ffn_up.*type I32, which"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_layer_is_one_clear_line(case: str, tmp_path: Path) -> None:
    unfit, path = UNFIT[case], tmp_path / "layer.gguf"
    changes = (unfit.keys, unfit.tensors, unfit.architecture)
    write_changed(path, *changes, write=write_tiny_nextn, **unfit.tiny)
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    with pytest.raises(ModelError) as caught:
        follow(path, model)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and message.isprintable()
    assert re.search(unfit.pattern, message), message


@pytest.mark.parametrize("case", [c for c in UNFIT if UNFIT[c].tensors])
def test_unfit_block_of_the_models_file_is_as_clear(case: str, tmp_path: Path) -> None:
    """The trunk does not mind; the drafter does."""
    unfit, path = UNFIT[case], tmp_path / "tiny.gguf"
    write_changed(path, unfit.keys, unfit.tensors, nextn_seed=1)
    assert build_model(GgufFile.open(path)).info.layers == 2
    with pytest.raises(ModelError, match=unfit.pattern) as caught:
        own(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_whole_model_is_no_layer(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    other = write_tiny_llama(tmp_path / "other.gguf", layers=3)
    with pytest.raises(ModelError, match=r"other\.gguf: not a file of one MTP layer"):
        follow(other, model)


def test_tokens_are_the_models_where_both_list_them(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", with_vocab=True)
    tokens = vocabulary()
    size = len(tokens)
    follow(write_tiny_nextn(tmp_path / "none.gguf", vocab=size), model)
    follow(write_tiny_nextn(tmp_path / "same.gguf", vocab=size, tokens=tokens), model)
    mute = write_tiny_llama(tmp_path / "mute.gguf", vocab=size)
    swapped = [*tokens[:40], "\x1b", *tokens[41:]]
    for other, words in (
        (swapped, rf"token 40 is '\\x1b', the model's is {re.escape(repr(tokens[40]))}: of"),
        (tokens[:-1], rf"token {size - 1} is missing, the model's is "),
        ([*tokens, "x"], rf"token {size} is 'x', the model's is missing"),
    ):
        layer = write_tiny_nextn(tmp_path / "other.gguf", vocab=size, tokens=other)
        follow(layer, mute)
        with pytest.raises(ModelError, match=words) as caught:
            follow(layer, model)
        assert str(caught.value).isprintable()
