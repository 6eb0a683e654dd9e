"""Writes tiny valid GGUF models of the llama architecture."""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from gguf.constants import GGML_QUANT_SIZES

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ t", "Ġt he", "i n", "in g", "Ġ w", "o r")
EOS_ID = 2
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: Types that gguf cannot make from floats: where a block has its f16 factors, and their ratio, with
#: which the mean is about 0.
UNMADE = {
    GGMLQuantizationType.Q4_K: {0: 1.0, 2: 7.5},
    GGMLQuantizationType.Q5_K: {0: 1.0, 2: 15.5},
    GGMLQuantizationType.Q6_K: {208: 1.0},
}

_Shapes = dict[str, tuple[int, ...]]


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for the bytes in a byte-level vocabulary, by byte."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def vocabulary() -> list[str]:
    """The tokens of with_vocab=True by id: special tokens, bytes, one token per merge."""
    return [*SPECIAL_TOKENS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def write_tiny_llama(
    path: Path,
    *,
    layers: int = 2,
    embedding: int = 48,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ff: int = 80,
    vocab: int = 133,
    context: int = 512,
    tied: bool = True,
    ftype: GGMLQuantizationType = GGMLQuantizationType.F32,
    seed: int = 0,
    with_vocab: bool = False,
    nextn_seed: int | None = None,
) -> Path:
    """Writes the model and returns path; equal arguments give equal bytes.

    Matrices are N(0, 1/sqrt(in)) stored as ftype (K types: random codes of that size), or as F32
    where ftype's blocks do not divide their rows; norms are 1 +- 0.1. with_vocab adds a byte-level
    vocabulary of its own size, nextn_seed the NextN layer that write_tiny_nextn writes with this
    seed.
    """
    vocab = len(vocabulary()) if with_vocab else vocab
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(layers + (nextn_seed is not None))
    writer.add_context_length(context)
    writer.add_embedding_length(embedding)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    width = head_dim or embedding // heads
    writer.add_rope_dimension_count(width)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _add_tokenizer(writer, with_vocab)
    shapes = _shapes(layers, embedding, heads * width, kv_heads * width, ff, vocab, tied)
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        _add_tensor(writer, name, _values(rng, shape), ftype)
    if nextn_seed is not None:
        _add_nextn(writer, layers, embedding, heads * width, kv_heads * width, ff, nextn_seed)
    finish(writer)
    return path


def finish(writer: GGUFWriter) -> None:
    """Writes everything that was added, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(
    layers: int, embedding: int, queries: int, keys: int, ff: int, vocab: int, tied: bool
) -> _Shapes:
    """Every tensor's shape, rows (outputs) first."""
    shapes: _Shapes = {"token_embd.weight": (vocab, embedding), "output_norm.weight": (embedding,)}
    if not tied:
        shapes["output.weight"] = (vocab, embedding)
    layer: _Shapes = {
        "attn_norm": (embedding,),
        "attn_q": (queries, embedding),
        "attn_k": (keys, embedding),
        "attn_v": (keys, embedding),
        "attn_output": (embedding, queries),
        "ffn_norm": (embedding,),
        "ffn_gate": (ff, embedding),
        "ffn_up": (ff, embedding),
        "ffn_down": (embedding, ff),
    }
    for index in range(layers):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    noise = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return np.float32(1) + np.float32(0.1) * noise
    return noise / np.float32(np.sqrt(shape[-1]))


def _add_tensor(
    writer: GGUFWriter, name: str, values: npt.NDArray[np.float32], ftype: GGMLQuantizationType
) -> None:
    whole_blocks = values.shape[-1] % GGML_QUANT_SIZES[ftype][0] == 0
    kind = ftype if values.ndim > 1 and whole_blocks else GGMLQuantizationType.F32
    writer.add_tensor(name, _stored(values, kind), raw_dtype=kind)


def _stored(values: npt.NDArray[np.float32], kind: GGMLQuantizationType) -> npt.NDArray[np.generic]:
    """The values as a type has them; any codes of that size where gguf cannot make them."""
    if kind not in UNMADE:
        return quants.quantize(values, kind)
    weights, size = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(zlib.crc32(values.tobytes()))
    shape = (values.shape[0], values.shape[1] // weights, size)
    raw = rng.integers(0, 256, shape, np.uint8)
    signs = rng.choice([-1.0, 1.0], (*shape[:2], 1))

    def scaled(by: float) -> npt.NDArray[np.uint8]:
        for at, factor in UNMADE[kind].items():
            raw[:, :, at : at + 2] = (signs * factor * by).astype(np.float16).view(np.uint8)
        return raw.reshape(values.shape[0], -1)

    return scaled(float(values.std() / quants.dequantize(scaled(1.0), kind).std()))


def _add_tokenizer(writer: GGUFWriter, with_vocab: bool) -> None:
    if not with_vocab:
        writer.add_tokenizer_model("none")
        return
    tokens = vocabulary()
    normal = len(tokens) - len(SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * len(SPECIAL_TOKENS) + [TokenType.NORMAL] * normal)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(SPECIAL_TOKENS.index("<|im_start|>"))
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_tiny_nextn(
    path: Path,
    *,
    layers: int = 2,
    embedding: int = 48,
    heads: int = 4,
    kv_heads: int = 2,
    ff: int = 80,
    vocab: int = 133,
    seed: int = 1,
    tokens: Sequence[str] | None = None,
) -> Path:
    """A random NextN layer that follows a model of `write_tiny_llama` with the same numbers.

    `tokens` are the tokenizer's, which such a file need not have.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(layers + 1)
    writer.add_context_length(512)
    writer.add_embedding_length(embedding)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    if tokens is not None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
    width = embedding // heads
    _add_nextn(writer, layers, embedding, heads * width, kv_heads * width, ff, seed)
    finish(writer)
    return path


def _add_nextn(
    writer: GGUFWriter, block: int, embedding: int, queries: int, keys: int, ff: int, seed: int
) -> None:
    """A NextN layer behind so many blocks, F32, and the key that says so."""
    writer.add_uint32("llama.nextn_predict_layers", 1)
    shapes: _Shapes = {
        "nextn.eh_proj": (embedding, 2 * embedding),
        **dict.fromkeys(("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"), (embedding,)),
        **dict.fromkeys(("attn_norm", "ffn_norm"), (embedding,)),
        "attn_q": (queries, embedding),
        "attn_output": (embedding, queries),
        **dict.fromkeys(("attn_k", "attn_v"), (keys, embedding)),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (ff, embedding)),
        "ffn_down": (embedding, ff),
    }
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        values = _values(rng, shape)
        _add_tensor(writer, f"blk.{block}.{name}.weight", values, GGMLQuantizationType.F32)
