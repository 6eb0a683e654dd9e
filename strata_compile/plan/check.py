"""Rules between a plan's fields, and between a plan and its model."""

from strata_compile.plan.schema import Plan, StageSpec
from strata_kernels.table import ROW_LIMIT


def check_plan(plan: Plan) -> None:
    """Check what needs no model: slots against groups, listed stages against each other."""
    _check_groups(plan)
    _check_order(plan)


def check_against_model(plan: Plan, *, layer_count: int, context_length: int) -> None:
    """Check the plan against a model's number of layers and its longest context in tokens."""
    count = plan.stages.count
    if count is not None and count > layer_count:
        message = f"{count} stages need as many layers, the model has {layer_count}"
        raise plan.error("stages", message)
    if plan.stages.listed:
        _check_layers(plan, layer_count)
    if plan.context is None and context_length < 2:
        raise plan.error("context", f"the model's {context_length} token cannot be decoded")
    if plan.context is not None and plan.context > context_length:
        message = f"{plan.context} tokens are beyond the model's {context_length}"
        raise plan.error("context", message)


def check_draft(plan: Plan, *, vocab: int, nextn_layers: int | None) -> None:
    """Check an MTP drafter against a model's vocabulary, and against its own NextN layers.

    `nextn_layers` is how many the model's file has, None where the layer has a file of its own.
    """
    if plan.draft.vocab is not None and plan.draft.vocab > vocab:
        message = f"{plan.draft.vocab} tokens are beyond the model's {vocab}"
        raise plan.error("draft.vocab", message)
    if nextn_layers == 0:
        advice = "name its file with 'model: FILE', or write 'kind: ngram'"
        raise plan.error("draft", f"the model's file has no MTP layer: {advice}")
    if nextn_layers is not None and nextn_layers > 1:
        message = f"the model's file has {nextn_layers} MTP layers, this version drafts with one"
        raise plan.error("draft", f"{message}: write 'kind: ngram' or 'kind: none'")


def _check_groups(plan: Plan) -> None:
    if plan.groups > plan.slots:
        message = f"{plan.groups} groups cannot be filled: slots is {plan.slots}"
        raise plan.error("groups", message)
    # Every slot of a window needs a row for its real token.
    if plan.slots > ROW_LIMIT * plan.groups:
        needed = -(-plan.slots // ROW_LIMIT)
        message = (
            f"{plan.slots} slots do not fit {_counted(plan.groups, 'group')} of at most "
            f"{ROW_LIMIT} rows: groups must be at least {needed}"
        )
        raise plan.error("slots", message)


def _check_order(plan: Plan) -> None:
    """Listed stages start at layer 0 and follow each other without gap or overlap."""
    expected = 0
    for index, stage in enumerate(plan.stages.listed):
        first = stage.layers[0]
        if first < expected:
            raise plan.error(f"stages[{index}].layers", _overlap(plan, index))
        if first > expected and index == 0:
            message = f"the first stage must start at layer 0, found {_span(*stage.layers)}"
            raise plan.error("stages[0].layers", message)
        if first > expected:
            before = f"stages[{index - 1}] ({_span(*plan.stages.listed[index - 1].layers)})"
            gap = _span(expected, first - 1)
            message = f"{_span(*stage.layers)} must follow {before} without a gap: {gap} missing"
            raise plan.error(f"stages[{index}].layers", message)
        expected = stage.layers[1] + 1


def _overlap(plan: Plan, index: int) -> str:
    """Earlier stages have no gap, so the first layer of an overlapping one is in one of them."""
    first, last = plan.stages.listed[index].layers
    earlier = plan.stages.listed[:index]
    other = next(i for i, stage in enumerate(earlier) if _holds(stage, first))
    both = _span(first, min(last, earlier[other].layers[1]))
    before = f"stages[{other}] ({_span(*earlier[other].layers)})"
    return f"{_span(first, last)} overlap {before}: {both} in both"


def _holds(stage: StageSpec, layer: int) -> bool:
    return stage.layers[0] <= layer <= stage.layers[1]


def _check_layers(plan: Plan, layer_count: int) -> None:
    """Listed stages cover the model's layers and no others."""
    end = 0
    for index, stage in enumerate(plan.stages.listed):
        end = stage.layers[1] + 1
        if end > layer_count:
            beyond = _span(max(stage.layers[0], layer_count), stage.layers[1])
            message = f"no {beyond}: the model has {_span(0, layer_count - 1)}"
            raise plan.error(f"stages[{index}].layers", message)
    if end < layer_count:
        message = f"no stage has {_span(end, layer_count - 1)} of the model"
        raise plan.error(f"stages[{len(plan.stages.listed) - 1}].layers", message)


def _span(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
