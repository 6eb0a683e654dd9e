"""Streams that share a rig must each come out as if alone: how they are decoded and compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_maker import write_tiny_llama, write_tiny_nextn
from ordered_device import OrderedDevice
from recurrent import as_recurrent
from replayer import compile_bundle
from strata_runtime.bundle_format import Manifest
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.device import Device, Done
from strata_runtime.drafters import Drafter, NgramDrafter, NoDrafter, ReplayDrafter
from strata_runtime.engine import Engine, Update
from strata_runtime.launch import Launch, Sampling, Table
from strata_runtime.request import Request
from token_by_token import Alone, Carried, Text, Witness

Ints = npt.NDArray[np.int32]
#: Tokens of a text at most; its record is longer, so that drafts go on behind its end.
LENGTH, RECORD = 14, 22
#: Is the replayed draft at this position of the text right?
HOLDS: dict[str, Callable[[int], bool]] = {
    "replay all": lambda place: True,
    "replay none": lambda place: False,
    "replay alternating": lambda place: place % 2 == 0,
    "replay random": lambda place: random.Random(place).random() < 0.7,
}


class Watched:
    """A device, and what it was given: `most` windows at once, the `widest` one's slots, drafts."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._windows: dict[int, Table] = {}
        self.kinds: set[str] = set()  # of launches
        self.most = self.widest = self.windows = self.drafted = self.accepted = 0

    def submit(self, launch: Launch) -> None:
        """Queue a launch."""
        table = launch.table
        self.kinds.add(table.kind)
        if launch.stage == 0 and table.kind == "exec":
            self._windows[table.context] = table
            self.windows += 1
            self.most = max(self.most, len(self._windows))
            self.widest = max(self.widest, len(table.segments))
        self._device.submit(launch)

    def wait(self) -> Done:
        """The next completion."""
        return self._device.wait()

    def verdict(self, context: int) -> Ints:
        """A window's verdict words."""
        words = self._device.verdict(context)
        for line, segment in zip(words, self._windows.pop(context).segments, strict=False):
            self.drafted += segment.count - 1
            self.accepted += int(line[0])
        return words

    def drafts(self, context: int) -> Ints:
        """A chain's words."""
        return self._device.drafts(context)

    def close(self) -> None:
        """The device is another's."""


@dataclass
class Heard:
    """What was heard of each request, by the engine's number: tokens, and the end once it came."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, Text] = field(default_factory=dict)
    ended_beside: int = 0  # texts that ended while others went on

    def add(self, update: Update) -> None:
        """Take an update down."""
        text = self.tokens.setdefault(update.request_id, [])
        text += update.tokens
        if update.finish is not None:
            assert update.request_id not in self.ends, "a text ended twice"
            self.ends[update.request_id] = Text(tuple(text), update.finish, update.logits_hash)


def decode(engine: Engine, wanted: Sequence[Request], stagger: int = 0) -> tuple[list[Text], Heard]:
    """Decode requests, each admitted `stagger` updates after the one before."""
    todo, numbers, heard, since = list(wanted), list[int](), Heard(), stagger
    while engine.busy or todo:
        if todo and (since >= stagger or not engine.busy):
            numbers.append(engine.submit(todo.pop(0)))
            since = 0
            continue
        for update in engine.pump():
            heard.add(update)
            since += 1
            going_on = len(numbers) + len(todo) - len(heard.ends)
            heard.ended_beside += update.finish is not None and going_on > 0
    return [heard.ends[number] for number in numbers], heard


class Book:
    """Requests of a model with their texts alone, records that go on, and what a slot carries.

    A request is known by its sampling seed, from 1 on.
    """

    def __init__(
        self, bundle: Bundle, layers: int, cuda: CudaDevice | None = None, count: int = 19
    ) -> None:
        """`bundle` has one stage and one slot, and a drafter's cells if any rig has.

        On a CUDA device texts have their own bits, and what a slot carries is not looked at.
        """
        self.layers = layers
        self.shape, self.vocab = bundle.manifest.shape, bundle.manifest.model.vocab
        alone = Alone(bundle, cuda)
        self.requests: list[Request] = []
        self.texts: dict[int, Text] = {}
        self.records: dict[int, tuple[int, ...]] = {}
        self.carried: dict[int, Carried] = {}
        for i in range(count):
            request = self._request(i)
            seed, record = i + 1, alone.text(replace(request, max_tokens=RECORD)).tokens
            if i % 3 == 1:  # ends in the midst, maybe between accepted drafts
                late = [t for n, t in enumerate(record[:LENGTH]) if n > 3 and t not in record[:n]]
                request = replace(request, end_tokens=frozenset(late[:1]))
            self.requests.append(request)
            self.texts[seed] = alone.text(request)
            self.records[seed] = (*request.prompt, *record)
            if cuda is None:
                kept = self.records[seed][: self.shape.context]
                self.carried[seed] = alone.carried(kept)
        alone.close()

    def _request(self, index: int) -> Request:
        """Greedy, sampled, penalised; short and long prompts, some that repeat themselves."""
        rng, context = random.Random(index), self.shape.context
        length = (1, 33, 5, 50, 12, 2, 24, context - 9)[index % 8]
        prompt = [rng.randrange(self.vocab) for _ in range(length)]
        if index % 4 == 2:
            prompt = [prompt[i % 4] for i in range(length)]
        sampling = (
            Sampling(),
            Sampling(temperature=1.1, top_k=20, top_p=0.95, min_p=0.01),
            Sampling(repeat_penalty=1.3, frequency_penalty=0.2, penalty_last=32),
            Sampling(temperature=0.6),
            Sampling(),
        )[index % 5]
        sampling = replace(sampling, seed=index + 1)
        return Request(0, tuple(prompt), LENGTH - index % 4, sampling=sampling)

    def drafter(self, kind: str) -> Callable[[Request], Drafter]:
        """What makes a host drafter of this kind for a request."""
        if kind == "ngram":
            return lambda request: NgramDrafter()
        if kind not in HOLDS:
            return lambda request: NoDrafter()
        return lambda request: ReplayDrafter(
            self.records[request.sampling.seed], self.vocab, HOLDS[kind]
        )

    def witness(self, rig: Rig) -> Witness:
        """Compares what the rig's slots carry."""
        return Witness(rig.ordered.arenas, rig.bundle.manifest, self.carried, self.layers)


@dataclass(frozen=True)
class Cards:
    """GPUs: their architecture, what compiles as `compile_bundle`, what opens a bundle on one."""

    arch: str
    compile: Callable[..., Bundle]
    open: Callable[[Bundle], CudaDevice]


class Rig:
    """A bundle, on a device with a thread a stage, on one whose order is drawn, and on a GPU."""

    def __init__(self, bundle: Bundle, cards: Cards | None = None) -> None:
        self.bundle = bundle
        self._cards = cards
        self._threads: CpuDevice | None = None
        self._ordered: OrderedDevice | None = None
        self._cuda: CudaDevice | None = None

    @property
    def threads(self) -> CpuDevice:
        """The CPU device, made when it is first asked for."""
        if self._threads is None:
            bundle, folder = self.bundle, self.bundle.folder
            weights, draft = open_weights(bundle, folder), open_draft(bundle, folder)
            self._threads = CpuDevice(bundle, weights, threads=1, draft=draft)
        return self._threads

    @property
    def ordered(self) -> OrderedDevice:
        """The device in the caller's thread, made when it is first asked for."""
        if self._ordered is None:
            self._ordered = OrderedDevice(self.bundle)
        return self._ordered

    @property
    def cuda(self) -> CudaDevice:
        """The CUDA device, made when it is first asked for."""
        if self._cuda is None:
            assert self._cards is not None
            self._cuda = self._cards.open(self.bundle)
        return self._cuda

    def close(self) -> None:
        """Stop the workers, and free what is on a GPU."""
        for device in (self._threads, self._cuda):
            if device is not None:
                device.close()


def narrowed(manifest: Manifest, slots: int, groups: int, auto: bool = False) -> Manifest:
    """The manifest of a bundle with fewer slots and windows: the programs are the same."""
    shape = replace(manifest.shape, slots=slots, groups=groups, draft_auto=auto)
    return replace(manifest, shape=shape)


#: Shapes that every rig is compiled for; `narrowed` takes what it needs of them.
MOST_SLOTS, MOST_WINDOWS, CONTEXT, LAYERS, VOCAB = 16, 4, 96, 4, 133


class Rigs:
    """Tiny models, their rigs and their books, each made once; `install` has been called.

    With `cards`, rigs are for them too, and books are what they say.
    """

    def __init__(self, folder: Path, cards: Cards | None = None) -> None:
        self._folder, self._cards = folder, cards
        sizes = {"layers": LAYERS, "vocab": VOCAB}
        self._model = write_tiny_llama(folder / "tiny.gguf", **sizes)
        self._layer = write_tiny_nextn(folder / "layer.gguf", **sizes)
        self._rigs: dict[tuple[str, int, bool], Rig] = {}
        self._books: dict[str, Book] = {}

    def rig(self, family: str, stages: int, mtp: bool) -> Rig:
        """`family` is llama or recurrent; drafts are the layer's or the host's."""
        key = (family, stages, mtp)
        if key not in self._rigs:
            bundle = self._compiled(family, stages, mtp, MOST_SLOTS, MOST_WINDOWS)
            self._rigs[key] = Rig(bundle, self._cards)
        return self._rigs[key]

    def book(self, family: str) -> Book:
        """The family's requests, and their texts alone."""
        if family not in self._books:
            bundle = self._compiled(family, 1, True, 1, 1)
            cuda = self._cards.open(bundle) if self._cards else None
            self._books[family] = Book(bundle, LAYERS, cuda)
        return self._books[family]

    def close(self) -> None:
        """Stop all workers."""
        for rig in self._rigs.values():
            rig.close()

    def _compiled(self, family: str, stages: int, mtp: bool, slots: int, groups: int) -> Bundle:
        kind = f"mtp, model: {self._layer}" if mtp else "ngram"
        keys: dict[str, object] = {"stages": stages, "slots": slots, "groups": groups}
        keys["context"] = CONTEXT
        compiled = compile_bundle
        if self._cards is not None:
            compiled = self._cards.compile
            keys["targets"] = f"[cpu, {self._cards.arch}]"
        folder = self._folder / f"{family}-{stages}-{kind[:3]}-{slots}"
        with pytest.MonkeyPatch.context() as patch:
            if family == "recurrent":
                as_recurrent(patch)
            draft = f"{{kind: {kind}, depth: 7}}"
            return compiled(folder, self._model, **keys, draft=draft)


def covering(dimensions: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Few cases in which every two values of two dimensions meet; the same ones every time."""
    rng, names = random.Random(0), list(dimensions)
    pairs = {
        ((a, x), (b, y))
        for a, b in combinations(names, 2)
        for x in dimensions[a]
        for y in dimensions[b]
    }
    cases = []
    while pairs:
        ((a, x), (b, y)) = min(pairs, key=str)
        tries = [{n: rng.choice(dimensions[n]) for n in names} | {a: x, b: y} for _ in range(99)]
        met = [pairs & {*combinations(case.items(), 2)} for case in tries]
        best = max(range(len(tries)), key=lambda i: len(met[i]))
        cases.append(tries[best])
        pairs -= met[best]
    return cases
