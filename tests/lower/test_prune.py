"""prune: what a buffer needs is kept, in order; the rest goes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from strata_compile.lower.calls import LoweredCall, Named, Operand, Scratch, call
from strata_compile.lower.prune import prune
from strata_kernels.spec import Arg, Bound, Geometry, KernelSpec, read, write


@dataclass(frozen=True)
class Params:
    """A call's number, and how many values it reads and writes."""

    number: int
    inputs: int
    outputs: int


def args(p: Params) -> tuple[Arg, ...]:
    """in0, in1, ... and out0, out1, ..."""
    inputs = tuple(read(f"in{i}", 8) for i in range(p.inputs))
    return (*inputs, *(write(f"out{i}", 8) for i in range(p.outputs)))


def geometry(p: Params) -> Geometry:
    """One thread."""
    return Geometry((1, 1, 1), 1)


def reference(p: Params, bound: Bound) -> None:
    """Never run."""


SPEC = KernelSpec("any", Params, args, geometry, reference)


def made(number: int, inputs: list[Operand], outputs: list[Operand]) -> LoweredCall:
    operands = {f"in{i}": o for i, o in enumerate(inputs)}
    operands |= {f"out{i}": o for i, o in enumerate(outputs)}
    return call(SPEC, Params(number, len(inputs), len(outputs)), **operands)


def numbers(calls: tuple[LoweredCall, ...]) -> list[int]:
    return [c.params.number for c in calls]


BUFFER = Named(0, "cells", "cells", 1)


def test_a_chain_without_a_buffer_goes() -> None:
    a, b, c = Scratch("a"), Scratch("b"), Scratch("c")
    calls = [
        made(0, [], [a]),
        made(1, [a], [b]),  # needed by nobody but 3
        made(2, [a], [BUFFER]),
        made(3, [b, BUFFER], [c]),
    ]
    assert numbers(prune(calls)) == [0, 2]
    assert prune(calls[:2]) == ()
    assert prune([]) == ()


def test_one_useful_result_keeps_a_call_and_its_inputs() -> None:
    a, b, c = Scratch("a"), Scratch("b"), Scratch("c")
    calls = [made(0, [], [a]), made(1, [a], [b, BUFFER]), made(2, [b], [c])]
    assert numbers(prune(calls)) == [0, 1]


def needed(calls: list[LoweredCall]) -> set[int]:
    """By definition: the least set that has the writers of buffers and of what it reads."""
    writer = {o: c for c in calls for n, o in c.operands.items() if n.startswith("out")}
    found: set[int] = set()
    todo = [c for c in calls if BUFFER in (c.operands.get(f"out{i}") for i in range(3))]
    while todo:
        one = todo.pop()
        if one.params.number not in found:
            found.add(one.params.number)
            reads = [o for n, o in one.operands.items() if n.startswith("in")]
            todo += [writer[o] for o in reads if isinstance(o, Scratch)]
    return found


def random_calls(rng: random.Random) -> list[LoweredCall]:
    calls: list[LoweredCall] = []
    values: list[Operand] = []
    for number in range(rng.randint(1, 20)):
        inputs = rng.sample(values, min(len(values), rng.randint(0, 3)))
        fresh: list[Operand] = [Scratch(f"{number}.{i}") for i in range(rng.randint(1, 2))]
        outputs = [*fresh, BUFFER] if rng.random() < 0.15 else fresh
        calls.append(made(number, inputs, outputs))
        values += fresh
    return calls


def test_random_programs_keep_exactly_what_is_needed_in_order() -> None:
    rng = random.Random(5)
    dropped = 0
    for _ in range(200):
        calls = random_calls(rng)
        kept = numbers(prune(calls))
        assert kept == sorted(needed(calls))
        dropped += len(calls) - len(kept)
        assert prune(list(prune(calls))) == prune(calls)
    assert dropped > 200
