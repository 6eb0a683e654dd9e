"""A multi-token-prediction (NextN) layer: the drafter, as a model graph of its own.

Cell i pairs the trunk's hidden state behind `output_norm` at position i with the token at i + 1:

    x = eh_proj · [rms(embed(token)) · enorm; rms(h) · hnorm]
    x = x + attention(rms(x) · attn_norm)                      as the family's own layers
    x = x + ffn(rms(x) · ffn_norm)
    o = rms(x) · shared_head_norm                              o · head proposes the token at i + 2

and the next step of a chain takes o for h. Embedding, head and last norm are the trunk's where the
layer has none of its own (`nextn.embed_tokens`, `.shared_head_head`, `.shared_head_norm`). The
layer is the block behind the trunk's: in the model's own file, or in a file for itself.
"""

from __future__ import annotations

from dataclasses import replace

from strata_compile.model.companion import trunk_rope
from strata_compile.model.graph import ModelGraph, Node
from strata_compile.model.llama import KEYS, read_attention
from strata_compile.model.ops import Concat, Embed, Hidden, Linear, Op, RmsNorm, SwiGlu, Tensor
from strata_compile.model.tensors import TensorReader, block_of

#: The drafter's values whose names other passes know: what a chain goes on from, and its logits.
HIDDEN, OUTPUT, LOGITS = "draft.hidden", "draft.output_norm", "draft.output"


def build_drafter(
    reader: TensorReader, trunk: ModelGraph, vocab: int | None, *, file: str = "draft"
) -> ModelGraph:
    """The drafter's graph; `vocab` bounds its head to the lowest ids.

    `file` is where the layer's tensors are: `model`, or `draft` for a file of its own, which
    `check_companion` has seen. ModelError where a tensor is missing, unknown or of another shape.
    """
    reader.refuse_other_keys(KEYS)
    builder = _Builder(reader, trunk, vocab, file)
    builder.layer()
    own_file, block = file == "draft", trunk.info.layers
    reader.refuse_unread(lambda name: own_file or block_of(name) == block)
    return builder.graph


class _Builder:
    """Adds the drafter's operators in order."""

    def __init__(
        self, reader: TensorReader, trunk: ModelGraph, vocab: int | None, file: str
    ) -> None:
        info = trunk.info
        self.reader, self.trunk, self.file = reader, trunk, file
        self.width, self.vocab = info.width, vocab or info.vocab
        self.graph = ModelGraph(replace(info, name=f"{info.name} drafter", vocab=self.vocab))
        self.attention = replace(read_attention(reader, info), rope=trunk_rope(trunk))
        self.epsilon = reader.number("attention.layer_norm_rms_epsilon")

    def layer(self) -> None:
        a, width = self.attention, self.width
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        token = self._add("draft.embedding", Embed(self._embedding()), width)
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
        norm, head = self._last_norm(), replace(self._head(), shape=(self.vocab, width))
        o = self._add(OUTPUT, RmsNorm(norm, self.epsilon), width, x)
        self._add(LOGITS, Linear(head), self.vocab, o)

    def _embedding(self) -> Tensor:
        op = next(iter(self.trunk)).op
        assert isinstance(op, Embed)
        return self._own("nextn.embed_tokens", *op.weight.shape) or op.weight

    def _last_norm(self) -> Tensor:
        op = self.trunk["output_norm"].op
        assert isinstance(op, RmsNorm)
        return self._own("nextn.shared_head_norm", self.width) or op.weight

    def _head(self) -> Tensor:
        op = self.trunk["output"].op
        assert isinstance(op, Linear)
        return self._own("nextn.shared_head_head", *op.weight.shape) or op.weight

    def _own(self, name: str, *shape: int) -> Tensor | None:
        """A tensor that the layer may have in place of the trunk's."""
        has = self.reader.has(f"blk.{self.trunk.info.layers}.{name}.weight")
        return self._tensor(f"{name}.weight", *shape) if has else None

    def _tensor(self, name: str, *shape: int) -> Tensor:
        tensor = self.reader.tensor(f"blk.{self.trunk.info.layers}.{name}", *shape)
        return replace(tensor, file=self.file)

    def _norm(self, name: str, x: str) -> str:
        weight = self._tensor(f"{name}.weight", self.width)
        return self._add(f"draft.{name}", RmsNorm(weight, self.epsilon), self.width, x)

    def _linear(self, name: str, width: int, *inputs: str) -> str:
        weight = self._tensor(f"{name}.weight", width, self.graph[inputs[0]].width)
        has_bias = self.reader.has(f"blk.{self.trunk.info.layers}.{name}.bias")
        bias = self._tensor(f"{name}.bias", width) if has_bias else None
        return self._add(f"draft.{name}", Linear(weight, bias), width, *inputs)

    def _add(self, name: str, op: Op, width: int, *inputs: str) -> str:
        return self.graph.add(Node(name, op, self.trunk.info.layers, width), inputs)
