"""Every kernel by name: an explicit list, so that importing a module registers nothing."""

from __future__ import annotations

from typing import Any

from strata_kernels import (
    attention,
    attention_merge,
    copy_cells,
    embed,
    handoff_read,
    handoff_write,
    linear,
    logits_hash,
    prompt_attention,
    rmsnorm,
    rope_store,
    sample,
    store_tokens,
    swiglu,
    take_table,
    verdict,
)
from strata_kernels.spec import KernelSpec

KERNELS: dict[str, KernelSpec[Any]] = {
    spec.name: spec
    for spec in (
        take_table.SPEC,
        embed.SPEC,
        handoff_read.SPEC,
        rmsnorm.SPEC,
        linear.SPEC,
        rope_store.SPEC,
        attention.SPEC,
        attention_merge.SPEC,
        prompt_attention.SPEC,
        swiglu.SPEC,
        handoff_write.SPEC,
        store_tokens.SPEC,
        logits_hash.SPEC,
        sample.SPEC,
        verdict.SPEC,
        copy_cells.SPEC,
    )
}
