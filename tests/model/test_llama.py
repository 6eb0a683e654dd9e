"""llama files to model graphs: what is understood, and what each unfit file is told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_changes import Keys, Tensors, norms, write_changed
from gguf_maker import write_tiny_llama
from strata_compile.model.build import build_model
from strata_compile.model.graph import EMBEDDING, ModelGraph
from strata_compile.model.ops import Attention, Linear, RmsNorm, Rope, SwiGlu, Tensor, weights_of
from strata_runtime.errors import ModelError
from strata_runtime.gguf_file import GgufFile

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB = 48, 4, 2, 12, 80, 133
KV = KV_HEADS * HEAD_DIM


def built(path: Path) -> ModelGraph:
    graph = build_model(GgufFile.open(path))
    graph.verify()
    return graph


def changed(folder: Path, **change: Any) -> ModelGraph:
    return built(write_changed(folder / "tiny.gguf", **change))


def attention(graph: ModelGraph, layer: int = 0) -> Attention:
    op = graph[f"blk.{layer}.attention"].op
    assert isinstance(op, Attention)
    return op


def linear(graph: ModelGraph, name: str) -> Linear:
    op = graph[name].op
    assert isinstance(op, Linear)
    return op


def test_info_is_the_files(tmp_path: Path) -> None:
    info = changed(tmp_path, keys={"general.name": "Tiny One"}, layers=3, context=640).info
    assert (info.name, info.architecture, info.layers) == ("Tiny One", "llama", 3)
    assert (info.width, info.vocab, info.context) == (WIDTH, VOCAB, 640)
    assert changed(tmp_path).info.name == "tiny"  # a file without a name has its own


def test_a_layer_is_what_the_module_says(tmp_path: Path) -> None:
    graph = built(write_tiny_llama(tmp_path / "tiny.gguf"))
    assert [n.name for n in graph if n.layer == 1] == [
        f"blk.1.{part}"
        for part in (
            *("attn_norm", "attn_q", "attn_k", "attn_v", "attention", "attn_output"),
            *("ffn_norm", "ffn_gate", "ffn_up", "ffn_act", "ffn_down"),
        )
    ]
    residual = "blk.0.ffn_down"
    assert graph.inputs("blk.1.attn_norm") == (residual,)
    assert graph.inputs("blk.1.attention") == tuple(f"blk.1.attn_{x}" for x in "qkv")
    assert graph.inputs("blk.1.attn_output") == ("blk.1.attention", residual)
    assert graph.inputs("blk.1.ffn_act") == ("blk.1.ffn_gate", "blk.1.ffn_up")
    assert graph.inputs("blk.1.ffn_down") == ("blk.1.ffn_act", "blk.1.attn_output")
    assert graph.inputs("output_norm") == ("blk.1.ffn_down",)
    assert isinstance(graph["blk.1.ffn_act"].op, SwiGlu)
    norm = graph["blk.1.ffn_norm"].op
    assert isinstance(norm, RmsNorm) and norm.epsilon == pytest.approx(1e-5)
    assert linear(graph, "blk.1.attn_k").weight.shape == (KV, WIDTH)
    assert attention(graph) == Attention(
        HEADS, KV_HEADS, HEAD_DIM, Rope(10000.0, HEAD_DIM, 1.0, None, interleaved=True)
    )


def test_every_tensor_of_the_file_is_used_once(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", tied=False)
    used = [w.name for n in built(path) for w in weights_of(n.op)]
    assert sorted(used) == sorted(GgufFile.open(path).tensors)


@pytest.mark.parametrize("tied", [True, False])
def test_head(tmp_path: Path, tied: bool) -> None:
    graph = built(write_tiny_llama(tmp_path / "tiny.gguf", tied=tied))
    head = graph["output"]
    name = "token_embd.weight" if tied else "output.weight"
    assert linear(graph, "output").weight == Tensor(name, "F32", (VOCAB, WIDTH))
    assert (head.layer, head.width) == (2, VOCAB)
    assert (graph["embedding"].layer, graph["embedding"].width) == (EMBEDDING, WIDTH)


def test_biases(tmp_path: Path) -> None:
    widths = {
        "attn_q": WIDTH,
        "attn_k": KV,
        "attn_output": WIDTH,
        "ffn_gate": FF,
        "ffn_down": WIDTH,
    }
    biases = {f"blk.0.{name}.bias": norms(n) for name, n in widths.items()}
    graph = changed(tmp_path, tensors=biases)
    for name, n in widths.items():
        assert linear(graph, f"blk.0.{name}").bias == Tensor(f"blk.0.{name}.bias", "F32", (n,))
        assert linear(graph, f"blk.1.{name}").bias is None
    assert linear(graph, "blk.0.attn_v").bias is None


def test_head_dim_is_the_key_length(tmp_path: Path) -> None:
    graph = built(write_tiny_llama(tmp_path / "tiny.gguf", head_dim=20))
    assert (attention(graph).head_dim, attention(graph).rope.dims) == (20, 20)
    assert graph["blk.0.attn_q"].width == HEADS * 20 != WIDTH
    assert linear(graph, "blk.0.attn_output").weight.shape == (WIDTH, HEADS * 20)


def test_without_optional_keys(tmp_path: Path) -> None:
    gone: Keys = dict.fromkeys(
        ("llama.attention.head_count_kv", "llama.rope.dimension_count", "llama.rope.freq_base")
    )
    op = attention(changed(tmp_path, keys=gone, kv_heads=HEADS))
    assert (op.kv_heads, op.rope.dims, op.rope.base) == (HEADS, HEAD_DIM, 10000.0)


def test_rope(tmp_path: Path) -> None:
    keys: Keys = {"llama.rope.dimension_count": 8, "llama.rope.freq_base": 5e5}
    partial = attention(changed(tmp_path, keys=keys)).rope
    assert partial == Rope(5e5, 8, 1.0, None, interleaved=True)


def test_rope_factors_of_the_file(tmp_path: Path) -> None:
    graph = changed(tmp_path, tensors={"rope_freqs.weight": norms(HEAD_DIM // 2)})
    factors = Tensor("rope_freqs.weight", "F32", (HEAD_DIM // 2,))
    assert [attention(graph, layer).rope.factors for layer in (0, 1)] == [factors, factors]


FACTOR, TYPE = "llama.rope.scaling.factor", "llama.rope.scaling.type"


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({TYPE: "linear", FACTOR: 4.0}, 0.25),
        ({TYPE: "linear"}, 1.0),
        ({TYPE: "none", FACTOR: 4.0}, 1.0),
        # llama.cpp, which defines the format, takes a file without a type for linear
        ({FACTOR: 4.0}, 0.25),
    ],
)
def test_linear_rope_scaling(tmp_path: Path, keys: Keys, scale: float) -> None:
    assert attention(changed(tmp_path, keys=keys)).rope.scale == scale


@dataclass(frozen=True)
class Unfit:
    """A change to the tiny model, and what the message must say."""

    pattern: str
    keys: Keys = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    architecture: str = "llama"


def key(name: str, value: Any, pattern: str) -> Unfit:
    return Unfit(pattern, {f"llama.{name}": value})


def tensor(name: str, values: Any, pattern: str) -> Unfit:
    return Unfit(pattern, tensors={name: values})


HEAD_COUNT, KV_COUNT = "attention.head_count", "attention.head_count_kv"
Q = "blk.1.attn_q.weight"

UNFIT = {
    "architecture": Unfit(r"'mamba' is not supported \(llama\)", architecture="mamba"),
    "no architecture's keys": Unfit(r"'LLAMA' is not supported", architecture="LLAMA"),
    "split file": Unfit(r"one part of a split model; merge", {"split.count": 3}),
    # tensors
    "unknown tensor": tensor("blk.0.extra.weight", norms(4), r"blk\.0\.extra\.weight'? is unknown"),
    "unknown tensors": Unfit(r"'?a'? and 1 more is unknown", {}, {"a": norms(1), "b": norms(1)}),
    "layer too many": tensor("blk.2.attn_norm.weight", norms(WIDTH), r"blk\.2.* is unknown"),
    "missing tensor": tensor(Q, None, r"attn_q\.weight'? is missing; the nearest is .*blk"),
    "no embedding": tensor("token_embd.weight", None, r"token_embd\.weight'? is missing"),
    "wrong rows": tensor(Q, norms(47, WIDTH), r"attn_q.* is 47 × 48, expected 48 × 48"),
    "wrong columns": tensor(Q, norms(WIDTH, 40), r"attn_q.* is 48 × 40, expected 48 × 48"),
    "wrong dimensions": tensor(Q, norms(WIDTH * 48), r"attn_q.* is 2304, expected 48 × 48"),
    "wrong norm": tensor("output_norm.weight", norms(47), r"output_norm.* is 47, expected 48"),
    "wrong bias": tensor("blk.0.attn_k.bias", norms(23), r"attn_k\.bias.* is 23, expected 24"),
    "wrong head": tensor("output.weight", norms(9, WIDTH), r"output.* is 9 × 48, expected 133"),
    "wrong embedding": tensor("token_embd.weight", norms(9, 40), r"9 × 40, expected any × 48"),
    "wrong factors": tensor("rope_freqs.weight", norms(5), r"rope_freqs.* is 5, expected 6"),
    "type without float32": tensor(Q, np.ones((48, 48), np.int32), r"attn_q.*type I32, which"),
    # heads
    "heads that do not share": key(KV_COUNT, 3, r"4 query heads cannot share 3 key-value heads"),
    "more keys than queries": key(KV_COUNT, 8, r"4 query heads cannot share 8 key-value heads"),
    "odd heads": Unfit(
        r"width 48 is not a multiple of 5 heads",
        {f"llama.{HEAD_COUNT}": 5, f"llama.{KV_COUNT}": 5},
    ),
    "values of another length": key("attention.value_length", 16, r"different lengths"),
    "another key length": key("attention.key_length", 16, r"different|expected"),
    # rope
    "yarn": key("rope.scaling.type", "yarn", r"rope scaling 'yarn' is not supported \(none, lin"),
    "odd rope": key("rope.dimension_count", 7, r"rope\.dimension_count 7 does not fit heads of 12"),
    "rope too wide": key("rope.dimension_count", 14, r"rope\.dimension_count 14 does not fit"),
    "attention factor": key("rope.scaling.attn_factor", 2.0, r"attn_factor'? is set, which llama"),
    # arithmetic that nobody reads
    "experts": key("expert_count", 8, r"llama\.expert_count'? is set, which llama here does not"),
    "window": key("attention.sliding_window", 4096, r"sliding_window'? is set, which llama"),
    "attention scale": key("attention.scale", 0.5, r"attention\.scale'? is set, which llama"),
    "logit scale": key("logit_scale", 0.5, r"logit_scale'? is set, which llama"),
    "residual scale": key("residual_scale", 0.5, r"residual_scale'? is set, which llama"),
    "softcap": key("final_logit_softcapping", 30.0, r"final_logit_softcapping'? is set"),
    "clamp": key("attention.clamp_kqv", 8.0, r"clamp_kqv'? is set"),
    "only nextn": key("nextn_predict_layers", 2, r"2 NextN layers leave none of 2 blocks"),
    "negative nextn": key("nextn_predict_layers", -1, r"nextn_predict_layers is -1, expected 0"),
    # counts
    "no layers": key("block_count", 0, r"llama\.block_count is 0, expected 1 or more"),
    "negative layers": key("block_count", -1, r"llama\.block_count is -1, expected 1 or more"),
    "too many layers": key("block_count", (1 << 32) - 1, r"block_count is 4294967295"),
    "absurd layers": key("block_count", (1 << 31) - 1, r"blk\.2\.attn_norm\.weight'? is missing"),
    "absurd width": key("embedding_length", 1 << 30, r"133 × 48, expected any × 1073741824"),
    "absurd heads": key(HEAD_COUNT, 1 << 30, r"1073741824 heads"),
    "absurd key length": key("attention.key_length", 1 << 30, r"different|expected"),
    "absurd context": key("context_length", 1 << 40, r"llama\.context_length is 1099511627776"),
    "context beyond int32": key("context_length", 1 << 31, r"context_length.* 2147483648"),
    "absurd hidden width": key("feed_forward_length", 1 << 30, r"ffn_gate.* expected 1073741824"),
    "a half layer": key("block_count", 1.5, r"block_count' must be a whole number.* 1\.5"),
    "layers in words": key("block_count", "two", r"block_count' must be a whole number.*'two'"),
    "heads in words": key(HEAD_COUNT, "many", r"head_count' must be a whole number"),
    "no epsilon": key("attention.layer_norm_rms_epsilon", 0.0, r"epsilon is 0\.0, expected more"),
    "negative base": key("rope.freq_base", -1.0, r"rope\.freq_base is -1\.0, expected more than 0"),
    "epsilon is missing": key("attention.layer_norm_rms_epsilon", None, r"epsilon' is missing"),
    "context is missing": key("context_length", None, r"context_length' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_file_is_one_clear_line(case: str, tmp_path: Path) -> None:
    unfit = UNFIT[case]
    path = tmp_path / "tiny.gguf"
    write_changed(path, unfit.keys, unfit.tensors, unfit.architecture)
    with pytest.raises(ModelError) as caught:
        build_model(GgufFile.open(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and message.isprintable()
    assert re.search(unfit.pattern, message), message


def test_zero_factor_of_a_linear_rope(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rope\.scaling\.factor is 0\.0, expected more than 0"):
        changed(tmp_path, keys={TYPE: "linear", FACTOR: 0.0})


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\u2028"])
def test_names_of_the_file_cannot_break_the_line(tmp_path: Path, character: str) -> None:
    name = f"blk{character}x"
    for change in (Unfit("", tensors={name: norms(1)}), Unfit("", {f"llama.rope.{name}": 1})):
        with pytest.raises(ModelError) as caught:
            changed(tmp_path, keys=change.keys, tensors=change.tensors)
        assert str(caught.value).isprintable()
