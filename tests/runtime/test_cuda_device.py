"""The CUDA device on a fake card: what it queues, what may run when, and what it makes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from cuda_case import CONTEXT, VOCAB, Bundles, submit, table, texts_on
from fake_card import FakeCard
from fake_driver import FakeDriver
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.cuda_driver import MAKING
from strata_runtime.cuda_profile import kernel_times
from strata_runtime.errors import DeviceError
from strata_runtime.launch import Launch
from token_by_token import Text

TOKENS = "1/cells.tokens"
#: Orders in which the fake card runs what is queued.
SEEDS = range(4)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """Each compiled when it is asked for."""
    return Bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def bundle(bundles: Bundles) -> Bundle:
    """Two stages, and drafts of the host."""
    return bundles(draft="{kind: ngram, depth: 3}")


@pytest.fixture
def card(bundle: Bundle) -> FakeCard:
    """A card that could run the bundle."""
    return FakeCard(bundle)


@pytest.fixture
def device(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """The bundle on the card."""
    return card.open(monkeypatch)


@pytest.fixture(scope="module")
def texts(bundle: Bundle) -> Iterator[list[Text]]:
    """What the CPU device says; drafts change nothing."""
    device = CpuDevice(bundle, open_weights(bundle, bundle.folder), threads=1)
    yield texts_on(device, bundle.manifest)
    device.close()


# ---- texts


@pytest.mark.parametrize("draft", ["{kind: ngram, depth: 3}", "{kind: mtp, model: layer.gguf}"])
@pytest.mark.parametrize("seed", SEEDS)
def test_texts_are_those_of_the_cpu_device(
    bundles: Bundles, texts: list[Text], seed: int, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and logits hashes, in whichever order the card runs what is queued."""
    bundle = bundles(draft=draft)
    card = FakeCard(bundle, seed)
    device = card.open(monkeypatch)
    assert texts_on(device, bundle.manifest) == texts
    assert card.driver.streams.fault is None
    device.close()


@pytest.mark.parametrize("stages", [1, 2])
def test_stages_may_share_out_the_multiprocessors(
    bundles: Bundles, texts: list[Text], stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage has a context of its own then, and what was made is freed."""
    bundle = bundles(stages=stages, partition="sms")
    card = FakeCard(bundle)
    device = card.open(monkeypatch)
    assert len({id(stream.of) for stream in card.driver.streams.all}) == stages
    assert texts_on(device, bundle.manifest) == texts
    device.close()


def test_a_missing_wait_shows(
    bundle: Bundle, texts: list[Text], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of streams that do not wait for each other the fake card makes something else."""
    monkeypatch.setattr(FakeDriver, "_cuStreamWaitEvent", lambda *args: ())
    wrong = 0
    for seed in SEEDS:
        device = FakeCard(bundle, seed).open(monkeypatch)
        try:
            wrong += texts_on(device, bundle.manifest) != texts
        except DeviceError:  # a token of nobody
            wrong += 1
    assert wrong == len(SEEDS)


# ---- launches


def test_waits_become_waits_of_streams(card: FakeCard, device: CudaDevice) -> None:
    """For the event that the other launch ends with; not for a launch that is known to be over."""
    driver, (one, two) = card.driver, card.driver.streams.all
    driver.calls.clear()
    what = table("exec", 0, 0, 3)
    submit(device, 1, "exec.r1", what)
    ended = [event for event, stream in driver.named("cuEventRecord") if stream is one][-1]
    ((stream, event, _),) = driver.named("cuStreamWaitEvent")
    assert stream is two and event is ended
    assert [name for name, _ in driver.calls if name != "cuCtxSetCurrent"] == [
        *("cuEventRecord", "cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent"),
        *("cuEventRecord", "cuGraphLaunch", "cuEventRecord"),
    ]
    assert {device.wait().launch_id for _ in range(2)} == {1, 2}
    driver.calls.clear()
    device.submit(Launch(3, 0, "exec.r1", what, (1, 2)))
    assert not driver.named("cuStreamWaitEvent")


def test_completions(device: CudaDevice) -> None:
    """Each launch once, stage by stage in order, and never before what it waits for."""
    for i in range(40):
        program = "prompt.r32" if i % 3 else "exec.r2"
        submit(device, 2 * i + 1, program, table(program.split(".")[0], i % 3, i, i, i % 2))
    done = [device.wait() for _ in range(80)]
    order = [d.launch_id for d in done]
    assert sorted(order) == [*range(1, 81)]
    for stage in (0, 1):
        mine = [d for d in done if d.stage == stage]
        assert [d.launch_id for d in mine] == [*range(1 + stage, 81, 2)]
        ends = [(d.start, d.start + d.elapsed_ms / 1e3) for d in mine]
        assert all(0 <= a < b for a, b in ends)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
    by_id = {d.launch_id: d for d in done}
    for i in range(1, 81, 2):
        assert by_id[i].start + by_id[i].elapsed_ms / 1e3 <= by_id[i + 1].start + 1e-9
    with pytest.raises(DeviceError, match="nothing is in flight"):
        device.wait()


@pytest.mark.parametrize("seed", SEEDS)
def test_ring_entries_are_used_again(
    bundles: Bundles, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more launches than entries, none of them waited for: each has run with its own table."""
    for module in ("facts", "programs"):
        monkeypatch.setattr(f"strata_compile.lower.{module}.RING_ENTRIES", 3)
    bundle = bundles(slots=3)
    assert bundle.manifest.shape.ring_entries == 3
    card = FakeCard(bundle, seed)
    device = card.open(monkeypatch)
    for position in range(CONTEXT):
        submit(device, 2 * position + 1, "exec.r1", table("exec", 1, position, position + 5))
    done = [device.wait().launch_id for _ in range(2 * CONTEXT)]
    assert sorted(done) == [*range(1, 2 * CONTEXT + 1)]
    cells = device.arenas.buffer(TOKENS)
    assert cells[1].flatten()[:CONTEXT].tolist() == [*range(5, CONTEXT + 5)]
    assert not cells[0].any() and not cells[2].any()


def test_a_verdict_is_a_copy(bundle: Bundle, device: CudaDevice) -> None:
    submit(device, 1, "exec.r1", table("exec", 0, 0, 3, context=1))
    assert [device.wait().error for _ in range(2)] == [None, None]
    first = device.verdict(1)
    assert first.shape == (bundle.manifest.shape.row_limit, 4)
    expected = first.copy()
    first[:] = -9
    assert device.verdict(1).tobytes() == expected.tobytes()
    assert 0 <= expected[0, 1] < VOCAB and not device.verdict(0).any()


# ---- what is made, and when


def test_nothing_is_made_while_serving(
    bundle: Bundle, card: FakeCard, device: CudaDevice, texts: list[Text]
) -> None:
    """The counters stand still, and what would move them is a fault."""
    made, alive = dict(device.driver.made), dict(card.driver.alive)
    programs = len(bundle.programs)
    assert made["cuGraphInstantiate"] == made["cuStreamBeginCapture"] == programs
    assert made["cuLibraryLoadData"] == len(bundle.manifest.units)
    card.driver.calls.clear()
    assert texts_on(device, bundle.manifest) == texts
    assert (dict(device.driver.made), dict(card.driver.alive)) == (made, alive)
    assert not MAKING & {name for name, _ in card.driver.calls}
    with pytest.raises(AssertionError, match="cuEventCreate while serving"):
        device.driver("cuEventCreate", 0)


@pytest.mark.parametrize("architecture", [(8, 0), (9, 0), (12, 0)])
def test_all_but_the_first_launch_of_a_graph_are_dependent(
    bundles: Bundles, architecture: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the card can: the first one reads what other streams have left."""
    card = FakeCard(bundles(targets="[sm_80, sm_90, sm_120]", prompt="{sizes: [8]}"))
    card.driver.architecture = architecture
    card.open(monkeypatch)
    graphs = [graph for graph, _ in card.driver.named("cuGraphInstantiate")]
    assert all(len(graph.nodes) > 1 for graph in graphs)
    for first, *others in (graph.nodes for graph in graphs):
        assert not first.dependent
        assert {node.dependent for node in others} == {architecture >= (9, 0)}


def test_close_frees_what_was_made(bundle: Bundle, card: FakeCard, device: CudaDevice) -> None:
    """Also where something is queued, which is not waited for before."""
    submit(device, 1, "exec.r1", table("exec", 0, 0, 3))
    assert card.driver.alive["executable"] == len(bundle.programs)
    assert card.driver.alive["stream"] == 2 and card.driver.alive["event"] > 0
    device.close()
    assert {kind: n for kind, n in card.driver.alive.items() if n} == {}


def test_a_kernel_can_be_timed(bundle: Bundle, device: CudaDevice, texts: list[Text]) -> None:
    """Between texts; what is captured for it is freed, and texts stay what they are."""
    program = bundle.programs[1, "exec.r2"]
    found = kernel_times(device, program)
    assert {t.entry for t in found} == {call.entry for call in program.calls}
    assert sum(t.calls for t in found) == len(program.calls) and all(t.us > 0 for t in found)
    with pytest.raises(AssertionError, match="while serving"):
        device.driver("cuEventCreate", 0)
    assert texts_on(device, bundle.manifest) == texts
