"""What the CUDA device refuses, and how it ends when a card is lost: in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_case import Bundles, submit, table
from fake_card import FakeCard
from fake_streams import CUresult
from strata_compile.cubins.resources import read_resources
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.errors import BundleError, DeviceError
from strata_runtime.launch import Launch


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


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    """A message as commands print it."""
    text = str(error.value)
    assert text and text.isprintable()
    return text


def refused(card: FakeCard, words: str, patch: pytest.MonkeyPatch) -> None:
    """The bundle cannot be opened on this card, and one line says why."""
    with pytest.raises((DeviceError, BundleError)) as error:
        card.open(patch)
    assert words in one_line(error)


def on(bundle: Bundle, targets: Sequence[str]) -> Bundle:
    """The bundle as if it had been compiled for these."""
    return replace(bundle, manifest=replace(bundle.manifest, targets=tuple(targets)))


@pytest.mark.parametrize("name", ["cuEventSynchronize", "cuEventElapsedTime"])
def test_a_card_that_is_lost_while_one_stage_is_waited_for(
    card: FakeCard, device: CudaDevice, name: str
) -> None:
    device.submit(Launch(1, 0, "exec.r1", table("exec", 0, 0, 3)))
    card.driver.failing[name] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError) as error:
        device.wait()
    words = "CUDA_ERROR_ILLEGAL_ADDRESS (cuda error illegal address)"
    assert one_line(error) == f"cuda: {name}: {words}"


def test_a_card_that_is_lost_while_stages_are_asked(card: FakeCard, device: CudaDevice) -> None:
    submit(device, 1, "exec.r1", table("exec", 0, 0, 3))
    card.driver.failing["cuEventQuery"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError, match=r"^cuda: stage 0: cuEventQuery: CUDA_ERROR_ILLEGAL_ADD"):
        device.wait()


def test_a_kernel_that_fails_takes_the_card_with_it(card: FakeCard, device: CudaDevice) -> None:
    """Its row lies outside of every slot."""
    submit(device, 1, "exec.r1", table("exec", 77, 0, 3))
    with pytest.raises(DeviceError) as error:
        device.wait()
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in one_line(error)
    assert isinstance(card.driver.streams.fault, IndexError)


def test_a_launch_that_is_refused(card: FakeCard, device: CudaDevice) -> None:
    card.driver.failing["cuGraphLaunch"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match=r"^cuda: cuGraphLaunch: CUDA_ERROR_INVALID_VALUE"):
        submit(device, 1, "exec.r1", table("exec", 0, 0, 3))


def test_too_few_multiprocessors(bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(bundles(stages=2, partition="sms"))
    card.driver.sms = 15
    refused(card, "cuda:0: 15 multiprocessors are not enough for 2 stages", monkeypatch)


def test_too_little_memory(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the card: what is on the host does not count."""
    arenas = bundle.manifest.memory["cuda"].arenas.values()
    needed = sum(a.bytes for a in arenas if not a.host)
    card = FakeCard(bundle)
    card.driver.free = needed - (3 << 20) + 1
    refused(card, "cuda:0: the bundle needs", monkeypatch)
    refused(card, " 3 MiB short; ", monkeypatch)
    card.driver.free = needed
    card.open(monkeypatch)


@pytest.mark.parametrize(
    ("architecture", "targets", "taken"),
    [
        ((8, 6), ["sm_80"], "sm_80"),
        ((8, 9), ["cpu", "sm_80", "sm_86", "sm_90"], "sm_86"),
        ((8, 6), ["sm_86", "sm_80", "sm_89"], "sm_86"),
        ((12, 0), ["sm_90", "sm_120"], "sm_120"),
    ],
)
def test_the_newest_target_that_fits_is_taken(
    bundles: Bundles,
    architecture: tuple[int, int],
    targets: list[str],
    taken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = bundles(targets=f"[{', '.join(targets)}]", prompt="{sizes: [8]}")
    card = FakeCard(bundle)
    card.driver.architecture = architecture
    card.open(monkeypatch)
    loaded = [args[0] for args in card.driver.named("cuLibraryLoadData")]
    found = {r.registers for code in loaded for r in read_resources(code).values()}
    assert found == {int(taken.removeprefix("sm_"))}


@pytest.mark.parametrize(
    ("architecture", "targets"),
    [((9, 0), ["cpu", "sm_86"]), ((8, 0), ["sm_86"]), ((10, 0), ["sm_90", "sm_120"])],
)
def test_a_bundle_for_other_cards(
    bundle: Bundle,
    architecture: tuple[int, int],
    targets: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line says what the card is and what to add to the plan."""
    card = FakeCard(on(bundle, targets))
    card.driver.architecture = architecture
    mine = "sm_{}{}".format(*architecture)
    refused(card, f"cuda:0 is {mine}, the bundle is for {', '.join(targets)}; ", monkeypatch)
    refused(card, f"add {mine} to the plan's targets", monkeypatch)


def placed(bundle: Bundle, *devices: str | None) -> Bundle:
    """The bundle with its stages on these devices."""
    both = zip(bundle.manifest.stages, devices, strict=True)
    stages = tuple(replace(stage, device=device) for stage, device in both)
    return replace(bundle, manifest=replace(bundle.manifest, stages=stages))


def test_stages_on_two_cards(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(FakeCard(placed(bundle, "cuda:0", "cuda:1")), "cuda:0, cuda:1", monkeypatch)
    refused(FakeCard(placed(bundle, None, "cuda:1")), "only one card", monkeypatch)


def test_another_card_than_the_first(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(placed(bundle, "cuda:1", "cuda:1"))
    refused(card, "cuda: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE", monkeypatch)
    card.driver.cards = 2
    card.open(monkeypatch)
    assert card.driver.named("cuDeviceGet")[-1] == (1,)


def test_cubins_that_are_missing_or_damaged(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the bundle checks its files; then one may still go away."""
    unit = next(iter(bundle.manifest.units))
    moved = replace(bundle, folder=tmp_path)
    weights = open_weights(bundle, bundle.folder)
    card = FakeCard(bundle)
    card.open(monkeypatch)
    for words in ("cannot be read: No such file", "cuLibraryLoadData: CUDA_ERROR_INVALID_IMAGE"):
        with pytest.raises((BundleError, DeviceError)) as error:
            CudaDevice(moved, weights, open_draft(bundle, bundle.folder))
        assert words in one_line(error)
        path = tmp_path / "kernels" / unit / "sm_90.cubin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"nothing")


def test_entries_that_no_unit_has(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    units = dict(list(bundle.manifest.units.items())[1:])
    card = FakeCard(replace(bundle, manifest=replace(bundle.manifest, units=units)))
    refused(card, "kernels: no entry ", monkeypatch)
