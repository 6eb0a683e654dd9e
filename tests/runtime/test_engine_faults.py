"""The engine when things come in any order, go wrong, or are called off."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_maker
from fake_device import VOCAB, FakeDevice, text_alone
from replayer import compile_bundle
from scheduler_run import make_request
from strata_kernels.registry import KERNELS
from strata_runtime.bundle_format import Manifest, Shape
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.engine import Engine, Update
from strata_runtime.errors import DeviceError
from strata_runtime.launch import Launch
from strata_runtime.request import LENGTH, STOP, Request

CONTEXT = 240


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("faults")
    model = gguf_maker.write_tiny_llama(folder / "tiny.gguf")
    return compile_bundle(folder, model, stages=2, slots=2, groups=2, prompt="{sizes: [16]}")


class Bench:
    """An engine on a fake device, and everything that is heard from it."""

    def __init__(self, manifest: Manifest, stages: int, slots: int, groups: int, seed: int) -> None:
        shape = Shape(slots, groups, CONTEXT, 8, (8, 32), 2, 100.0, 64)
        model = replace(manifest.model, vocab=VOCAB)
        fake = replace(manifest, shape=shape, model=model, stages=manifest.stages[:1] * stages)
        self.device = FakeDevice(shape, stages, seed)
        self.engine = Engine(fake, self.device)
        self.texts: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.hashes: dict[int, str] = {}
        self.cancelled: set[int] = set()

    def submit(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        ends: frozenset[int] = frozenset(),
        watch: Callable[[int], bool] | None = None,
    ) -> Request:
        """A request whose seed is the id that the engine will give it."""
        number = len(self.texts) + 1
        request = self.device.expect(make_request(number, prompt, max_tokens, ends))
        self.texts[number] = []
        assert self.engine.submit(request, watch) == number
        return request

    def cancel(self, number: int) -> None:
        """Nothing more may be heard of it from now on."""
        self.cancelled.add(number)
        self.engine.cancel(number)

    def hear(self, update: Update) -> None:
        """Take an update down."""
        number = update.request_id
        assert number not in self.ends, "an update after the last"
        assert number not in self.cancelled, "an update of a cancelled request"
        self.texts[number] += update.tokens
        if update.finish is not None:
            self.ends[number] = update.finish
            self.hashes[number] = update.logits_hash or ""


@pytest.mark.parametrize("seed", range(40))
def test_texts_do_not_depend_on_the_order_of_completions(bundle: Bundle, seed: int) -> None:
    rng = random.Random(seed)
    rig = rng.randint(1, 4), rng.randint(1, 6), rng.randint(1, 4)
    bench, hashes = Bench(bundle.manifest, *rig, seed), list[str]()
    requests: dict[int, Request] = {}
    for _ in range(rng.randint(20, 150)):
        action = rng.random()
        if action < 0.15 and len(requests) < 8:
            prompt = tuple(rng.choices(range(VOCAB), k=rng.randint(1, 60)))
            request = bench.submit(prompt, rng.randint(1, 20), frozenset(rng.sample(range(50), 2)))
            requests[request.id] = request
        elif action < 0.2 and requests:
            bench.cancel(rng.choice([*requests]))
        elif bench.engine.busy:
            for update in bench.engine.pump():
                bench.hear(update)
    for update in bench.engine.updates():
        bench.hear(update)
    for number in requests.keys() - bench.cancelled:
        assert (bench.texts[number], bench.ends[number]) == text_alone(requests[number], CONTEXT)
        hashes.append(bench.hashes[number])
    assert not bench.engine.busy and len({*hashes}) == len(hashes)


def test_nothing_is_heard_of_a_cancelled_request(bundle: Bundle) -> None:
    """Not even what the same window brought for it."""
    bench = Bench(bundle.manifest, 1, 2, 1, seed=0)
    bench.submit((1,), 30)
    bench.submit((2,), 30)
    for update in bench.engine.updates():
        bench.hear(update)
        if update.request_id == 1 and len(bench.texts[2]) == 4:
            bench.cancel(2)
    assert bench.ends == {1: LENGTH} and len(bench.texts[2]) == 4


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_watcher_may_cancel_its_own_request(bundle: Bundle, after: int) -> None:
    """A client has gone; 6 is the last token of the text."""
    bench, seen = Bench(bundle.manifest, 2, 2, 1, seed=1), list[int]()

    def watch(token: int) -> bool:
        seen.append(token)
        if len(seen) == after:
            bench.cancel(1)
        return False

    bench.submit((1,), 6, watch=watch)
    other = bench.submit((2,), 9)
    for update in bench.engine.updates():
        bench.hear(update)
    assert len(seen) == after and bench.ends == {2: LENGTH}
    assert bench.texts[2] == text_alone(other, CONTEXT)[0]


def test_a_watcher_that_raises_touches_no_other_request(bundle: Bundle) -> None:
    bench = Bench(bundle.manifest, 2, 2, 1, seed=1)

    def watch(token: int) -> bool:
        raise UnicodeError("not my token")

    bench.submit((1,), 6, watch=watch)
    other = bench.submit((2,), 9)
    with pytest.raises(UnicodeError, match="not my token"):
        for update in bench.engine.updates():
            bench.hear(update)
    bench.cancel(1)
    for update in bench.engine.updates():
        bench.hear(update)
    assert bench.texts[2] == text_alone(other, CONTEXT)[0]


def test_a_watcher_may_ask_for_more(bundle: Bundle) -> None:
    """It submits the next request; both texts are theirs."""
    bench, more = Bench(bundle.manifest, 1, 1, 1, seed=1), list[Request]()

    def watch(token: int) -> bool:
        if not more:
            more.append(bench.submit((3, 4), 3))
        return len(bench.texts[1]) == 4

    first = bench.submit((1,), 20, watch=watch)
    for update in bench.engine.updates():
        bench.hear(update)
    assert bench.ends == {1: STOP, 2: LENGTH}
    assert bench.texts[1] == text_alone(first, CONTEXT)[0][:5]
    assert bench.texts[2] == text_alone(more[0], CONTEXT)[0]


def test_a_failed_launch_is_a_device_error(bundle: Bundle) -> None:
    bench = Bench(bundle.manifest, 2, 2, 2, seed=3)
    bench.device.errors[9] = FloatingPointError("lost")
    bench.submit((1, 2, 3), 8)
    with pytest.raises(
        DeviceError, match=r"^stage 0, exec.r1: FloatingPointError: lost$"
    ) as caught:
        list(bench.engine.updates())
    assert isinstance(caught.value.__cause__, FloatingPointError)
    assert bench.device.launches[8].stage == 0


@pytest.mark.parametrize("launch", [1, 2, 5, 6, 9, 10])
def test_a_failed_engine_stays_failed(bundle: Bundle, launch: int) -> None:
    """What ran behind the failed launch read garbage: no token of it may come out, ever."""
    bench = Bench(bundle.manifest, 2, 2, 2, seed=3)
    bench.device.errors[launch] = FloatingPointError("lost")
    requests = [bench.submit((1, 2, 3), 8), bench.submit((4,), 8)]
    with pytest.raises(DeviceError):
        for update in bench.engine.updates():
            bench.hear(update)
    heard = [len(bench.texts[r.id]) for r in requests]
    for _ in range(3):
        with pytest.raises(DeviceError):
            for update in bench.engine.updates():
                bench.hear(update)
    assert [len(bench.texts[r.id]) for r in requests] == heard


def run_guarded(body: Callable[[], None]) -> None:
    """Run in a thread that may hang; a minute is for ever."""
    raised: list[BaseException] = []

    def target() -> None:
        try:
            body()
        except BaseException as error:
            raised.append(error)

    worker = threading.Thread(target=target, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive(), "hangs"
    if raised:
        raise raised[0]


@pytest.mark.parametrize("kernel", ["embed", "handoff_read", "verdict", "prompt_attention"])
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_kernel_that_raises(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, calls: int
) -> None:
    """The caller learns which; nobody waits for what will not come, and the device closes."""
    count = iter(range(1, 1000))
    spec = KERNELS[kernel]

    def reference(params: object, bound: object) -> None:
        if next(count) == calls:
            raise ValueError("no such luck")
        spec.reference(params, bound)  # type: ignore[arg-type]

    monkeypatch.setitem(KERNELS, kernel, replace(spec, reference=reference))

    def body() -> None:
        device = CpuDevice(bundle, open_weights(bundle, tmp_path), threads=1)
        engine = Engine(bundle.manifest, device)
        for start in range(3):
            engine.submit(Request(0, tuple(range(start, start + 40)), 6))
        with pytest.raises(DeviceError, match=r"^stage [01], \w+\.r\d+: ValueError: no such luck$"):
            list(engine.updates())
        device.close()

    run_guarded(body)


def test_closing_ends_what_is_queued(bundle: Bundle, tmp_path: Path) -> None:
    """Without a single completion taken; no worker is left."""
    before = {*threading.enumerate()}
    device = CpuDevice(bundle, open_weights(bundle, tmp_path), threads=1)
    engine = Engine(bundle.manifest, device)
    for start in range(4):
        engine.submit(Request(0, tuple(range(start, start + 60)), 6))
    assert len({*threading.enumerate()} - before) == 2

    run_guarded(device.close)
    assert {*threading.enumerate()} <= before
    done = [device.wait() for _ in range(engine_launches(device))]
    assert all(d.error is None for d in done)
    run_guarded(device.close)


def engine_launches(device: CpuDevice) -> int:
    """Launches that the device has taken."""
    return sum(stage.submitted for stage in device._stages)


def test_launches_are_submitted_in_the_order_of_their_ids(bundle: Bundle) -> None:
    bench = Bench(bundle.manifest, 3, 4, 2, seed=5)
    for start in range(4):
        bench.submit(tuple(range(start, start + 20)), 5)
    list(bench.engine.updates())
    found: list[Launch] = bench.device.launches
    assert [launch.id for launch in found] == [*range(1, len(found) + 1)]
    assert [launch.stage for launch in found] == [i % 3 for i in range(len(found))]
