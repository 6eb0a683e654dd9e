"""The operators of a model graph, one frozen payload each; `lower/rules.py` has a rule for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model file: name, type as the file has it, shape with rows first.

    `file` is `model`, or `draft` where the drafter has a file of its own. A head of fewer rows than
    the file's has its first ones.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    file: str = "model"


@dataclass(frozen=True)
class Op(ABC):
    """What an operator does, and with which tensors of the model file."""

    @abstractmethod
    def fits(self, width: int, inputs: list[int]) -> bool:
        """Do the operator's own width and those of its inputs agree with its payload?"""


@dataclass(frozen=True)
class Embed(Op):
    """Tokens to rows of the matrix (vocab, width)."""

    weight: Tensor

    def fits(self, width: int, inputs: list[int]) -> bool:
        """No input; the matrix has two dimensions."""
        return inputs == [] and self.weight.shape[1:] == (width,)


@dataclass(frozen=True)
class RmsNorm(Op):
    """x / rms(x) · weight."""

    weight: Tensor
    epsilon: float

    def fits(self, width: int, inputs: list[int]) -> bool:
        """One input of the same width."""
        return inputs == [width] and self.weight.shape == (width,)


@dataclass(frozen=True)
class Linear(Op):
    """weight · x (+ bias) (+ second input, the residual stream, if there is one)."""

    weight: Tensor
    bias: Tensor | None = None

    def fits(self, width: int, inputs: list[int]) -> bool:
        """An input as wide as the matrix; a residual stream and a bias as wide as the result."""
        matrix = self.weight.shape == (width, *inputs[:1]) and inputs[1:] in ([], [width])
        bias = self.bias is None or self.bias.shape == (width,)
        return bool(inputs) and matrix and bias


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the first `dims` dimensions of each head turn by position · frequency.

    frequency_i = scale · base^(-2i / dims) / factors_i. `interleaved` pairs are (2i, 2i + 1).
    """

    base: float
    dims: int
    scale: float
    factors: Tensor | None
    interleaved: bool


@dataclass(frozen=True)
class Attention(Op):
    """Causal attention over the slot's cells; inputs q, k, v before rotation."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope

    def fits(self, width: int, inputs: list[int]) -> bool:
        """Heads share key-value heads evenly, and their rotated dimensions are pairs."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        pairs = self.rope.dims % 2 == 0 and self.rope.dims <= self.head_dim
        return inputs == [q, kv, kv] and width == q and self.heads % self.kv_heads == 0 and pairs


@dataclass(frozen=True)
class SwiGlu(Op):
    """silu(first input) · second input."""

    def fits(self, width: int, inputs: list[int]) -> bool:
        """Two inputs of the same width."""
        return inputs == [width] * 2


@dataclass(frozen=True)
class Hidden(Op):
    """The trunk's last hidden state, or the step before's: what a drafter goes on from."""

    def fits(self, width: int, inputs: list[int]) -> bool:
        """No input."""
        return inputs == []


@dataclass(frozen=True)
class Concat(Op):
    """Two values side by side."""

    def fits(self, width: int, inputs: list[int]) -> bool:
        """The inputs' widths add up."""
        return len(inputs) == 2 and sum(inputs) == width


def weights_of(op: Op) -> tuple[Tensor, ...]:
    """The tensors of the model file that an operator reads as they are: its own fields."""
    values = (getattr(op, field.name) for field in fields(op))
    return tuple(value for value in values if isinstance(value, Tensor))
