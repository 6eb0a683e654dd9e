"""How byte-level vocabularies write bytes, and cut a text before they merge: data only.

The letters are GPT-2's. The expressions are those of the families' own tokenizer.json files, under
the names that llama.cpp (src/llama-vocab.cpp) gives them in `tokenizer.ggml.pre`; Oniguruma reads
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# The letter for each byte: printable Latin-1 stands for itself, the rest follows U+00FF in order.
_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_MOVED = sorted(set(range(256)) - _PRINTABLE)
BYTE_LETTERS = "".join(
    chr(byte if byte in _PRINTABLE else 256 + _MOVED.index(byte)) for byte in range(256)
)


@dataclass(frozen=True)
class PreTokenizer:
    """One family's cuts: each pattern in turn isolates what it matches in the pieces left so far.

    `whole_words`: a piece that is a token stays whole, whatever the merges would make of it.
    `adds_bos`: what holds where the file does not say whether a text begins with bos.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKED_LETTERS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_MARKED_SYMBOLS = r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = rf"{_CONTRACTION}|{_MARKED_LETTERS}|\p{{N}}|{_MARKED_SYMBOLS}|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"

# Words in the case of their letters: capitals then small ones, or capitals alone.
_CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_PATH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = (
    rf"{_START}{_CAPITALS}*{_SMALL}+|{_START}{_CAPITALS}+{_SMALL}*"
    rf"|\p{{N}}|{_PATH_SYMBOLS}|{_SPACES}"
)
_GPT4O = (
    rf"{_START}{_CAPITALS}*{_SMALL}+{_CONTRACTION}?|{_START}{_CAPITALS}+{_SMALL}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_PATH_SYMBOLS}|{_SPACES}"
)

_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# The cased letters of one Unicode version, less some scripts: no property says the same.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_SYMBOLS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"

_GPT2_CUTS = PreTokenizer((_GPT2,))
_DIGIT_CUTS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_CUTS = PreTokenizer((_LLAMA3,))
_QWEN2_CUTS = PreTokenizer((_QWEN2,))
_GPT4O_CUTS = PreTokenizer((_GPT4O,))
_DEEPSEEK3_CUTS = PreTokenizer(_DEEPSEEK3)
_LLAMA3_BOS_CUTS = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "chatglm-bpe": _LLAMA3_CUTS,
    "codeshell": _DIGIT_CUTS,
    "command-r": _DIGIT_CUTS,
    "dbrx": _LLAMA3_CUTS,
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            rf"\s?[{_DEEPSEEK_SYMBOLS}]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-r1-qwen": _QWEN2_CUTS,
    "deepseek-v3": _DEEPSEEK3_CUTS,
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "exaone": _DIGIT_CUTS,
    "exaone4": _GPT2_CUTS,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "falcon-h1": _LLAMA3_BOS_CUTS,
    "falcon3": _LLAMA3_BOS_CUTS,
    "glm4": _LLAMA3_CUTS,
    "gpt-2": _GPT2_CUTS,
    "gpt-4o": _GPT4O_CUTS,
    "hunyuan": _QWEN2_CUTS,
    "hunyuan-dense": _DEEPSEEK3_CUTS,
    "lfm2": _LLAMA3_BOS_CUTS,
    "llama-bpe": _LLAMA3_BOS_CUTS,
    "llama-v3": _LLAMA3_BOS_CUTS,
    "llama3": _LLAMA3_BOS_CUTS,
    "llama4": _GPT4O_CUTS,
    "minerva-7b": _DIGIT_CUTS,
    "mpt": _GPT2_CUTS,
    "olmo": _GPT2_CUTS,
    "phi-2": _GPT2_CUTS,
    "qwen2": _QWEN2_CUTS,
    "qwen35": PreTokenizer((_QWEN35,)),
    "refact": _DIGIT_CUTS,
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "smaug-bpe": _LLAMA3_CUTS,
    "smollm": _DIGIT_CUTS,
    "stablelm2": _QWEN2_CUTS,
    "starcoder": _DIGIT_CUTS,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
}
