"""The llama family: grouped-query attention with interleaved rope, SwiGLU, RMS norms.

A layer, with x the residual stream:

    x = x + attn_output · attention(attn_q · n, attn_k · n, attn_v · n)   n = rms(x) · attn_norm
    x = x + ffn_down · (silu(ffn_gate · m) · ffn_up · m)                  m = rms(x) · ffn_norm

and logits = output · (rms(x) · output_norm), output being token_embd where the file has none.
NextN layers that the file has behind these blocks are no part of this graph: see `nextn.py`.
"""

from __future__ import annotations

from strata_compile.model.graph import EMBEDDING, ModelGraph, ModelInfo, Node
from strata_compile.model.ops import Attention, Embed, Linear, Op, RmsNorm, Rope, SwiGlu
from strata_compile.model.tensors import TensorReader, block_of

#: Metadata of this family that is read below; others that change the arithmetic are refused.
KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "nextn_predict_layers",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
)


def build(reader: TensorReader) -> ModelGraph:
    """The model graph of a llama file; ModelError names the key or tensor that does not fit."""
    reader.refuse_other_keys(KEYS)
    width = reader.count("embedding_length")
    vocab = reader.tensor("token_embd.weight", None, width).shape[0]
    layers = _trunk_layers(reader)
    info = ModelInfo(
        name=reader.name,
        architecture="llama",
        layers=layers,
        width=width,
        vocab=vocab,
        context=reader.count("context_length"),
    )
    builder = _Builder(reader, info)
    builder.embedding()
    for layer in range(info.layers):
        builder.layer(layer)
    builder.head()
    nextn = range(layers, layers + reader.nextn_layers)
    reader.refuse_unread(lambda name: block_of(name) not in nextn)
    return builder.graph


def _trunk_layers(reader: TensorReader) -> int:
    """Blocks without the NextN layers, which `block_count` counts too."""
    blocks, nextn = reader.count("block_count"), reader.nextn_layers
    if nextn >= blocks:
        raise reader.error(f"{nextn} NextN layers leave none of {blocks} blocks to the model")
    return blocks - nextn


class _Builder:
    """Adds a llama's operators in order; `x` is the name of the residual stream's last value."""

    def __init__(self, reader: TensorReader, info: ModelInfo) -> None:
        self.reader = reader
        self.info = info
        self.graph = ModelGraph(info)
        self.epsilon = reader.number("attention.layer_norm_rms_epsilon")
        self.attention = read_attention(reader, info)
        self.ff = reader.count("feed_forward_length")
        self.x = ""

    def embedding(self) -> None:
        weight = self.reader.tensor("token_embd.weight", self.info.vocab, self.info.width)
        self.x = self._add("embedding", Embed(weight), EMBEDDING, self.info.width)

    def layer(self, i: int) -> None:
        a = self.attention
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        n = self._norm(f"blk.{i}.attn_norm", i)
        q = self._linear(f"blk.{i}.attn_q", i, queries, n)
        k = self._linear(f"blk.{i}.attn_k", i, keys, n)
        v = self._linear(f"blk.{i}.attn_v", i, keys, n)
        mixed = self._add(f"blk.{i}.attention", a, i, queries, q, k, v)
        self.x = self._linear(f"blk.{i}.attn_output", i, self.info.width, mixed, self.x)
        m = self._norm(f"blk.{i}.ffn_norm", i)
        gate = self._linear(f"blk.{i}.ffn_gate", i, self.ff, m)
        up = self._linear(f"blk.{i}.ffn_up", i, self.ff, m)
        act = self._add(f"blk.{i}.ffn_act", SwiGlu(), i, self.ff, gate, up)
        self.x = self._linear(f"blk.{i}.ffn_down", i, self.info.width, act, self.x)

    def head(self) -> None:
        top, width, vocab = self.info.layers, self.info.width, self.info.vocab
        n = self._norm("output_norm", top)
        tied = not self.reader.has("output.weight")
        name = "token_embd.weight" if tied else "output.weight"
        self._add("output", Linear(self.reader.tensor(name, vocab, width)), top, vocab, n)

    def _norm(self, name: str, layer: int) -> str:
        weight = self.reader.tensor(f"{name}.weight", self.info.width)
        return self._add(name, RmsNorm(weight, self.epsilon), layer, self.info.width, self.x)

    def _linear(self, name: str, layer: int, width: int, *inputs: str) -> str:
        weight = self.reader.tensor(f"{name}.weight", width, self.graph[inputs[0]].width)
        has_bias = self.reader.has(f"{name}.bias")
        bias = self.reader.tensor(f"{name}.bias", width) if has_bias else None
        return self._add(name, Linear(weight, bias), layer, width, *inputs)

    def _add(self, name: str, op: Op, layer: int, width: int, *inputs: str) -> str:
        return self.graph.add(Node(name, op, layer, width), inputs)


def read_attention(reader: TensorReader, info: ModelInfo) -> Attention:
    """The attention that every layer has, the NextN layer too; ModelError where it cannot be."""
    heads = reader.count("attention.head_count")
    kv_heads = reader.count("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise reader.error(f"{heads} query heads cannot share {kv_heads} key-value heads")
    if info.width % heads and not reader.has_key("attention.key_length"):
        raise reader.error(f"width {info.width} is not a multiple of {heads} heads")
    head_dim = reader.count("attention.key_length", info.width // heads)
    if reader.count("attention.value_length", head_dim) != head_dim:
        raise reader.error("keys and values of different lengths are not supported")
    dims = reader.count("rope.dimension_count", head_dim)
    if dims % 2 or dims > head_dim:
        raise reader.error(f"rope.dimension_count {dims} does not fit heads of {head_dim}")
    return Attention(heads, kv_heads, head_dim, _rope(reader, dims))


def _rope(reader: TensorReader, dims: int) -> Rope:
    """Plain or linearly scaled positions; llama 3's own scaling comes as `rope_freqs.weight`."""
    kind = reader.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise reader.error(f"rope scaling {kind!r} is not supported (none, linear)")
    scale = 1.0 / reader.number("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    has_factors = reader.has("rope_freqs.weight")
    factors = reader.tensor("rope_freqs.weight", dims // 2) if has_factors else None
    return Rope(reader.number("rope.freq_base", 10000.0), dims, scale, factors, interleaved=True)
