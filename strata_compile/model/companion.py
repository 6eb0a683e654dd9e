"""Does a drafter's file follow this model? It has few tensors, and most other models' would fit."""

from __future__ import annotations

from itertools import zip_longest

from strata_compile.model.graph import ModelGraph
from strata_compile.model.llama import read_attention
from strata_compile.model.ops import Attention, Rope
from strata_compile.model.tensors import TensorReader
from strata_runtime.errors import ModelError
from strata_runtime.gguf_file import GgufFile
from strata_runtime.gguf_header import shown

_TOKENS = "tokenizer.ggml.tokens"


def check_companion(draft: GgufFile, model: GgufFile, trunk: ModelGraph) -> None:
    """ModelError with both values where a drafter's file is none, or is another model's.

    Heads, norms and the feed-forward width are the layer's own; the rest it shares with the trunk.
    """
    reader = TensorReader(draft, trunk.info.architecture)
    _check_layer(reader, draft, trunk)
    _check_tokens(draft, model)
    _check_rope(reader, draft, model, trunk)


def _differs(reader: TensorReader, what: str, found: object, wanted: object) -> ModelError:
    return reader.error(f"{what} is {found}, the model's is {wanted}: of another model")


def _check_layer(reader: TensorReader, draft: GgufFile, trunk: ModelGraph) -> None:
    """One NextN layer, behind as many layers as the model has, of its width and vocabulary."""
    info, architecture = trunk.info, draft.get_str("general.architecture")
    if architecture != info.architecture:
        raise _differs(reader, "architecture", shown(architecture), shown(info.architecture))
    if reader.nextn_layers != 1:
        key = f"{info.architecture}.nextn_predict_layers"
        raise reader.error(f"not a file of one MTP layer: {key} is {reader.nextn_layers}")
    for key, wanted in (("embedding_length", info.width), ("vocab_size", info.vocab)):
        found = reader.count(key, wanted)
        if found != wanted:
            raise _differs(reader, key, found, wanted)
    layers = reader.count("block_count") - 1
    if layers != info.layers:
        raise _differs(reader, "number of layers before it", layers, info.layers)


def _check_tokens(draft: GgufFile, model: GgufFile) -> None:
    """The same tokens by id, where both files list them."""
    found, wanted = (file.get_str_array(_TOKENS, None) for file in (draft, model))
    if found is None or wanted is None or found == wanted:
        return
    pairs = enumerate(zip_longest(found, wanted))
    token, (its, ours) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
    its, ours = ("missing" if text is None else shown(text) for text in (its, ours))
    message = f"token {token} is {its}, the model's is {ours}: of another model"
    raise ModelError(f"{draft.path}: {message}")


def _check_rope(reader: TensorReader, draft: GgufFile, model: GgufFile, trunk: ModelGraph) -> None:
    """The trunk's rotation: a stage has one table of cos and sin for all of its layers."""
    found, wanted = read_attention(reader, trunk.info).rope, trunk_rope(trunk)
    values = {
        "rope.freq_base": (found.base, wanted.base),
        "rope.dimension_count": (found.dims, wanted.dims),
        "rope scale": (found.scale, wanted.scale),
    }
    for what, (its, ours) in values.items():
        if its != ours:
            raise _differs(reader, what, its, ours)
    if found.factors is not None:
        name = found.factors.name
        if wanted.factors is None or draft.raw(name).tobytes() != model.raw(name).tobytes():
            raise reader.error(f"{name} is not the model's: of another model")


def trunk_rope(trunk: ModelGraph) -> Rope:
    """The rotation that all layers of a model share."""
    return next(node.op.rope for node in trunk if isinstance(node.op, Attention))
