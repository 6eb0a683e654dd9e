"""What a family's builder asks of a GGUF file: checked numbers, and tensors of known shape."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from strata_compile.model.ops import Tensor
from strata_runtime.errors import ModelError
from strata_runtime.gguf_file import GgufFile
from strata_runtime.gguf_header import shown

#: Metadata of an architecture whose meaning is arithmetic begins or ends like this.
_ARITHMETIC = ("attention.", "rope.", "expert", "nextn", "ssm.", "pooling")
_ARITHMETIC_PARTS = ("scale", "softcap", "clamp")
_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.")


def block_of(tensor: str) -> int:
    """The block that a tensor's name puts it in, -1 where it is in none."""
    match = _BLOCK.match(tensor)
    return int(match[1]) if match else -1


class TensorReader:
    """Reads one architecture's keys and tensors, and remembers what was read."""

    def __init__(self, gguf: GgufFile, architecture: str) -> None:
        """Keys are looked up under `<architecture>.`."""
        self._gguf = gguf
        self._architecture = architecture
        self._read: set[str] = set()

    @property
    def name(self) -> str:
        """The model's own name, or the file's."""
        return self._gguf.get_str("general.name", self._gguf.path.stem)

    @property
    def nextn_layers(self) -> int:
        """How many of the file's blocks, its last ones, are NextN layers."""
        return self.count("nextn_predict_layers", 0, low=0)

    def error(self, message: str) -> ModelError:
        """A ModelError that names the file."""
        return ModelError(f"{self._gguf.path}: {message}")

    def has_key(self, key: str) -> bool:
        """Does the file set this key of its architecture?"""
        return f"{self._architecture}.{key}" in self._gguf.metadata

    def count(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """A whole number of at least `low`."""
        name = f"{self._architecture}.{key}"
        value = self._gguf.get_int(name) if default is None else self._gguf.get_int(name, default)
        if not low <= value < 1 << 31:
            raise self.error(f"{name} is {value}, expected {low} or more, below 2^31")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        name = f"{self._architecture}.{key}"
        get = self._gguf.get_float
        value = get(name) if default is None else get(name, default)
        if not value > 0:
            raise self.error(f"{name} is {value}, expected more than 0")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self._gguf.get_str(f"{self._architecture}.{key}", default)

    def has(self, tensor: str) -> bool:
        """Does the file hold this tensor?"""
        return tensor in self._gguf.tensors

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """A tensor of this shape (rows first; None: any length); ModelError otherwise."""
        info = self._gguf.tensors.get(name)
        if info is None:
            close = difflib.get_close_matches(name, self._gguf.tensors, 1)
            hint = f"; the nearest is {shown(close[0])}" if close else ""
            raise self.error(f"tensor {name} is missing{hint}")
        fits = len(shape) == len(info.shape) and all(
            want is None or want == have for want, have in zip(shape, info.shape, strict=True)
        )
        if not fits:
            wanted = " × ".join("any" if n is None else str(n) for n in shape)
            found = " × ".join(map(str, info.shape))
            raise self.error(f"tensor {name} is {found}, expected {wanted}")
        self._gguf.require_dequantizable(name)
        self._read.add(name)
        return Tensor(name, info.ggml_type.name, info.shape)

    def refuse_other_keys(self, known: tuple[str, ...]) -> None:
        """ModelError for a key that would change the arithmetic and that nobody reads."""
        prefix = f"{self._architecture}."
        for key in self._gguf.metadata:
            name = key.removeprefix(prefix)
            if key == name or name in known:
                continue
            if name.startswith(_ARITHMETIC) or any(part in name for part in _ARITHMETIC_PARTS):
                known_here = f"which {self._architecture} here does not support"
                raise self.error(f"{shown(key)} is set, {known_here}")

    def refuse_unread(self, mine: Callable[[str], bool] = lambda name: True) -> None:
        """ModelError for a tensor that the architecture does not know: it would be ignored.

        `mine` says which names the caller answers for: a NextN block has a reader of its own.
        """
        unread = sorted(filter(mine, self._gguf.tensors.keys() - self._read))
        if unread:
            more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise self.error(f"tensor {shown(unread[0])}{more} is unknown to {self._architecture}")
