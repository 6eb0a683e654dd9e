"""What lowering knows of the plan: counts and sizes that every program of a bundle shares."""

from __future__ import annotations

from dataclasses import dataclass

from strata_compile.model.graph import ModelInfo
from strata_compile.plan.schema import Plan
from strata_kernels.spec import CHUNK
from strata_kernels.table import LAYOUT, ROW_LIMIT
from strata_runtime.bundle_format import Shape

#: Prompt chunks in flight: one is written while the next stage reads the other.
PROMPT_CONTEXTS = 2
#: Entries of a stage's ring of tables.
RING_ENTRIES = 64


@dataclass(frozen=True)
class Facts:
    """Counts of slots, contexts, cells and rows; `context` is the plan's, or the model's own."""

    slots: int
    groups: int
    context: int
    cell_type: str
    prompt_sizes: tuple[int, ...]
    vocab: int
    width: int
    max_gap_ms: float
    drafter: str = "none"
    draft_depth: int = 0
    draft_auto: bool = False
    min_p: float = 0.0

    @property
    def chunks(self) -> int:
        """Chunks of 64 cells that a slot has."""
        return -(-self.context // CHUNK)

    @property
    def states(self) -> int:
        """Entries of every buffer of states: each slot has its own."""
        return self.slots

    @property
    def saved_rows(self) -> int:
        """Saved rows of all windows in flight: those of a context stand together."""
        return self.groups * ROW_LIMIT

    @property
    def handoff_rows(self) -> int:
        """Hand-off rows of all contexts: windows first, then prompts."""
        return self.groups * ROW_LIMIT + PROMPT_CONTEXTS * self.prompt_sizes[-1]

    @property
    def ring_stride(self) -> int:
        """Words of one ring entry: the largest table."""
        return LAYOUT.words(max(self.prompt_sizes[-1], ROW_LIMIT))

    @property
    def shape(self) -> Shape:
        """What the scheduler needs to know."""
        return Shape(
            slots=self.slots,
            groups=self.groups,
            context=self.context,
            row_limit=ROW_LIMIT,
            prompt_sizes=self.prompt_sizes,
            prompt_contexts=PROMPT_CONTEXTS,
            max_gap_ms=self.max_gap_ms,
            ring_entries=RING_ENTRIES,
            drafter=self.drafter,
            draft_depth=self.draft_depth,
            draft_auto=self.draft_auto,
        )


def facts_of(plan: Plan, info: ModelInfo) -> Facts:
    """The plan's counts, with the model's context where the plan names none."""
    return Facts(
        slots=plan.slots,
        groups=plan.groups,
        context=plan.context or info.context,
        cell_type=plan.kv,
        prompt_sizes=plan.prompt.sizes,
        vocab=info.vocab,
        width=info.width,
        max_gap_ms=plan.prompt.max_gap_ms,
        drafter=plan.draft.kind,
        draft_depth=plan.draft.depth,
        draft_auto=plan.draft.auto,
        min_p=plan.draft.min_p,
    )
