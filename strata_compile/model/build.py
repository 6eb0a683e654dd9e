"""GGUF file to model graph: picks the family."""

from __future__ import annotations

from collections.abc import Callable

from strata_compile.model import llama
from strata_compile.model.graph import ModelGraph
from strata_compile.model.tensors import TensorReader
from strata_runtime.errors import ModelError
from strata_runtime.gguf_file import GgufFile

FAMILIES: dict[str, Callable[[TensorReader], ModelGraph]] = {"llama": llama.build}


def build_model(gguf: GgufFile) -> ModelGraph:
    """The model graph of a file; ModelError lists the architectures for any other."""
    architecture = gguf.get_str("general.architecture")
    if architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(f"{gguf.path}: architecture {architecture!r} is not supported ({known})")
    if gguf.get_int("split.count", 1) > 1:
        raise ModelError(f"{gguf.path}: one part of a split model; merge the parts first")
    return FAMILIES[architecture](TensorReader(gguf, architecture))
