"""Every kernel by name: an explicit list, so that importing a module registers nothing."""

from __future__ import annotations

from typing import Any

from strata_kernels import (
    attention,
    attention_merge,
    concat,
    copy_cells,
    copy_state,
    draft_back,
    draft_first,
    draft_pick,
    embed,
    gated,
    handoff_read,
    handoff_write,
    hidden_load,
    hidden_store,
    linear,
    linears,
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
        linears.SPEC,
        rope_store.SPEC,
        attention.SPEC,
        attention_merge.SPEC,
        prompt_attention.SPEC,
        swiglu.SPEC,
        gated.SPEC,
        handoff_write.SPEC,
        store_tokens.SPEC,
        logits_hash.SPEC,
        sample.SPEC,
        verdict.SPEC,
        hidden_store.SPEC,
        hidden_load.SPEC,
        concat.SPEC,
        draft_back.SPEC,
        draft_first.SPEC,
        draft_pick.SPEC,
        copy_cells.SPEC,
        copy_state.SPEC,
    )
}
