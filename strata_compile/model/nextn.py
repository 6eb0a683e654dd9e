"""A multi-token-prediction (NextN) layer: the drafter, as a model graph of its own.

Cell i pairs the trunk's hidden state behind `output_norm` at position i with the token at i + 1:

    x = eh_proj · [rms(embed(token)) · enorm; rms(h) · hnorm]
    x = x + attention(rms(x) · attn_norm)                      as the family's own layers
    x = x + ffn(rms(x) · ffn_norm)
    o = rms(x) · shared_head_norm                              o · head proposes the token at i + 2

and the next step of a chain takes o for h. Embedding and head are the trunk's.
"""

from __future__ import annotations

from dataclasses import replace

from strata_compile.model.graph import ModelGraph, ModelInfo, Node
from strata_compile.model.llama import KEYS, read_attention
from strata_compile.model.ops import Concat, Embed, Hidden, Linear, Op, RmsNorm, SwiGlu, Tensor
from strata_compile.model.tensors import TensorReader

#: The drafter's values whose names other passes know: what a chain goes on from, and its logits.
HIDDEN, OUTPUT, LOGITS = "draft.hidden", "draft.output_norm", "draft.output"


def build_drafter(reader: TensorReader, trunk: ModelGraph, vocab: int | None) -> ModelGraph:
    """The drafter's graph; `vocab` bounds its head to the lowest ids.

    ModelError where the file is not a NextN layer of this trunk: width, vocabulary, tensors.
    """
    reader.refuse_other_keys((*KEYS, "nextn_predict_layers"))
    _check_trunk(reader, trunk.info)
    builder = _Builder(reader, trunk, vocab)
    builder.layer()
    reader.refuse_unread()
    return builder.graph


def _check_trunk(reader: TensorReader, info: ModelInfo) -> None:
    if reader.count("nextn_predict_layers", 1) != 1:
        raise reader.error("more than one NextN layer is not supported")
    for key, wanted in (("embedding_length", info.width), ("vocab_size", info.vocab)):
        found = reader.count(key, wanted)
        if found != wanted:
            raise reader.error(f"{key} is {found}, the model's is {wanted}: of another model")
    if reader.count("block_count") != info.layers + 1:
        found = reader.count("block_count") - 1
        raise reader.error(f"follows {found} layers, the model has {info.layers}: of another model")


class _Builder:
    """Adds the drafter's operators in order."""

    def __init__(self, reader: TensorReader, trunk: ModelGraph, vocab: int | None) -> None:
        info = trunk.info
        self.reader, self.layer_index = reader, info.layers
        self.block = f"blk.{info.layers}"
        self.width, self.vocab = info.width, min(vocab or info.vocab, info.vocab)
        self.graph = ModelGraph(replace(info, name=f"{info.name} drafter", vocab=self.vocab))
        self.attention = read_attention(reader, info)
        self.epsilon = reader.number("attention.layer_norm_rms_epsilon")
        nodes = list(trunk)
        first, last = nodes[0].op, nodes[-1].op
        assert isinstance(first, Embed) and isinstance(last, Linear)
        self.embedding, self.head = first.weight, last.weight

    def layer(self) -> None:
        a, width = self.attention, self.width
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        token = self._add("draft.embedding", Embed(self.embedding), width)
        hidden = self._add(HIDDEN, Hidden(), width)
        e = self._norm("nextn.enorm", token)
        h = self._norm("nextn.hnorm", hidden)
        pair = self._add("draft.pair", Concat(), 2 * width, e, h)
        x = self._linear("nextn.eh_proj", width, pair)
        n = self._norm("attn_norm", x)
        q = self._linear("attn_q", queries, n)
        k, v = (self._linear(f"attn_{name}", keys, n) for name in "kv")
        mixed = self._add("draft.attention", a, queries, q, k, v)
        x = self._linear("attn_output", width, mixed, x)
        m = self._norm("ffn_norm", x)
        ff = self.reader.count("feed_forward_length")
        gate, up = (self._linear(f"ffn_{name}", ff, m) for name in ("gate", "up"))
        act = self._add("draft.ffn_act", SwiGlu(), ff, gate, up)
        x = self._linear("ffn_down", width, act, x)
        norm = self._tensor("nextn.shared_head_norm", width)
        o = self._add(OUTPUT, RmsNorm(norm, self.epsilon), width, x)
        head = replace(self.head, shape=(self.vocab, width))
        self._add(LOGITS, Linear(head), self.vocab, o)

    def _tensor(self, name: str, *shape: int) -> Tensor:
        return replace(self.reader.tensor(f"{self.block}.{name}.weight", *shape), file="draft")

    def _norm(self, name: str, x: str) -> str:
        weight = self._tensor(name, self.width)
        return self._add(f"draft.{name}", RmsNorm(weight, self.epsilon), self.width, x)

    def _linear(self, name: str, width: int, *inputs: str) -> str:
        weight = self._tensor(name, width, self.graph[inputs[0]].width)
        return self._add(f"draft.{name}", Linear(weight), width, *inputs)

    def _add(self, name: str, op: Op, width: int, *inputs: str) -> str:
        return self.graph.add(Node(name, op, self.layer_index, width), inputs)
