"""The closed set of operators of a model graph, one frozen payload each."""

from __future__ import annotations

from dataclasses import dataclass


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
class Embed:
    """Tokens to rows of the matrix (vocab, width)."""

    weight: Tensor


@dataclass(frozen=True)
class RmsNorm:
    """x / rms(x) · weight."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True)
class Linear:
    """weight · x (+ bias) (+ second input, the residual stream, if there is one)."""

    weight: Tensor
    bias: Tensor | None = None


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
class Attention:
    """Causal attention over the slot's cells; inputs q, k, v before rotation."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope


@dataclass(frozen=True)
class SwiGlu:
    """silu(first input) · second input."""


@dataclass(frozen=True)
class Hidden:
    """The trunk's last hidden state, or the step before's: what a drafter goes on from."""


@dataclass(frozen=True)
class Concat:
    """Two values side by side."""


Op = Embed | RmsNorm | Linear | Attention | SwiGlu | Hidden | Concat


def weights_of(op: Op) -> tuple[Tensor, ...]:
    """The tensors of the model file that an operator reads as they are."""
    match op:
        case Embed(weight) | RmsNorm(weight, _):
            return (weight,)
        case Linear(weight, bias):
            return (weight,) if bias is None else (weight, bias)
        case Attention() | SwiGlu() | Hidden() | Concat():
            return ()
