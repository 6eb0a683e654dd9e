"""Which device a command runs on, and what it says where there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_case import Bundles
from fake_card import FakeCard, install
from fake_driver import FakeDriver
from fake_streams import CUresult
from strata_runtime import cuda_device
from strata_runtime.bundle_load import Bundle, open_weights
from strata_runtime.cli import main
from strata_runtime.cpu_device import CpuDevice
from strata_runtime.cuda_driver import Driver
from strata_runtime.devices import device_for, open_device
from strata_runtime.errors import DeviceError
from strata_runtime.options import VARIABLES

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """Each compiled when it is asked for."""
    return Bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def bundle(bundles: Bundles) -> Bundle:
    """For the CPU and for a GPU."""
    return bundles()


@pytest.fixture(autouse=True)
def no_package(monkeypatch: Patch) -> None:
    """A machine without cuda-bindings, and without STRATA_* variables."""
    for name in ("cuda", "cuda.bindings", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def without_library(patch: Patch) -> None:
    """The package is there, NVIDIA's driver is not."""
    install(patch, driver := FakeDriver())
    driver.library_missing = True


def without_cards(patch: Patch) -> None:
    """The driver is there, and sees no card."""
    install(patch, driver := FakeDriver())
    driver.cards = 0


def with_old_driver(patch: Patch) -> None:
    """A driver that does not start."""
    install(patch, driver := FakeDriver())
    driver.failing["cuInit"] = CUresult.CUDA_ERROR_NO_DEVICE


#: What a machine may lack, and what is said then.
LACKS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "package": (
        lambda patch: None,
        "cuda: the package cuda-bindings is missing; install strata-compile[cuda], "
        "or use --device cpu",
    ),
    "library": (
        without_library,
        "cuda: no driver (Failed to dlopen libcuda.so.1); use --device cpu",
    ),
    "cards": (without_cards, "cuda: the driver sees no card; use --device cpu"),
    "start": (with_old_driver, "cuda: cuInit: CUDA_ERROR_NO_DEVICE (cuda error no device)"),
}
lacking = pytest.mark.parametrize(("take_away", "line"), LACKS.values(), ids=LACKS)


# ---- the driver


@lacking
def test_no_driver(take_away: Callable[[Patch], None], line: str, monkeypatch: Patch) -> None:
    take_away(monkeypatch)
    with pytest.raises(DeviceError) as error:
        Driver()
    assert str(error.value) == line


def test_values_behind_the_status(monkeypatch: Patch) -> None:
    """None, one or several; and a status as an error with the driver's own words."""
    install(monkeypatch, FakeDriver())
    driver = Driver()
    assert driver("cuDeviceGetCount") == 1
    context = driver("cuDevicePrimaryCtxRetain", 0)
    assert driver("cuCtxSetCurrent", context) == ()
    assert driver("cuMemGetInfo") == (1 << 40, 1 << 41)
    with pytest.raises(DeviceError) as error:
        driver("cuDeviceGet", 7)
    line = "cuda: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (cuda error invalid device)"
    assert str(error.value) == line
    monkeypatch.setattr(FakeDriver, "cuGetErrorString", lambda self, status: (status, None))
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_INVALID_DEVICE \(unknown error\)$"):
        driver("cuDeviceGet", 7)


# ---- the choice


def test_who_asks_is_given_it(bundle: Bundle, bundles: Bundles) -> None:
    """Whatever there is: what is missing is said when it is opened."""
    for which in (bundle, bundles(targets="[cpu]")):
        assert device_for(which, "cpu") == "cpu"
        assert device_for(which, "cuda") == "cuda"


def test_a_bundle_without_a_gpu_target_runs_on_the_cpu(
    bundles: Bundles, monkeypatch: Patch
) -> None:
    install(monkeypatch, driver := FakeDriver())
    assert device_for(bundles(targets="[cpu]"), None) == "cpu"
    assert driver.calls == []


@lacking
def test_without_a_card_a_bundle_for_gpus_runs_on_the_cpu(
    bundle: Bundle, take_away: Callable[[Patch], None], line: str, monkeypatch: Patch
) -> None:
    take_away(monkeypatch)
    assert device_for(bundle, None) == "cpu"


def test_with_a_card_a_bundle_for_gpus_runs_on_it(bundle: Bundle, monkeypatch: Patch) -> None:
    """Also where it will not fit: that is an error, not a reason to take the CPU silently."""
    install(monkeypatch, driver := FakeDriver())
    assert device_for(bundle, None) == "cuda"
    driver.architecture, driver.free = (7, 0), 0
    assert device_for(bundle, None) == "cuda"


# ---- opening


def test_a_bundle_for_the_cpu_only(bundles: Bundles, monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDriver())
    bundle = bundles(targets="[cpu]")
    with pytest.raises(DeviceError) as error:
        open_device("cuda", bundle, open_weights(bundle, bundle.folder), None, None)
    line = f"{bundle.folder}: compiled for cpu, not for a GPU; add its target"
    assert str(error.value) == line


def test_each_name_has_its_device(bundle: Bundle, monkeypatch: Patch) -> None:
    FakeCard(bundle).insert(monkeypatch)
    weights = open_weights(bundle, bundle.folder)
    for name, kind in (("cpu", CpuDevice), ("cuda", cuda_device.CudaDevice)):
        device = open_device(name, bundle, weights, None, 1)
        assert isinstance(device, kind)
        device.close()


@pytest.mark.parametrize(
    ("available", "cards", "line"),
    [
        (False, 0, "cuda: torch here was built without CUDA; install the usual build"),
        (True, 1, "cuda:1: there are 1 cards"),
    ],
)
def test_a_torch_that_cannot(available: bool, cards: int, line: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: available)
    monkeypatch.setattr("torch.cuda.device_count", lambda: cards)
    with pytest.raises(DeviceError) as error:
        cuda_device._check_torch(1)
    assert str(error.value) == line


# ---- strata-run


def run(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> tuple[int, str, str]:
    """The command on a bundle: its exit code, and what it wrote."""
    capsys.readouterr()
    code = main([str(folder), "--prompt-ids", "1,5,9", "--max-tokens", "6", "--json", *more])
    return (code, *capsys.readouterr())


@lacking
def test_the_command_without_a_card(
    bundle: Bundle,
    take_away: Callable[[Patch], None],
    line: str,
    monkeypatch: Patch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line and exit code 2 where it was asked for; the CPU does where it was not."""
    take_away(monkeypatch)
    assert run(capsys, bundle.folder, "--device", "cuda") == (2, "", f"strata-run: {line}\n")
    found = [run(capsys, bundle.folder, *more) for more in ((), ("--device", "cpu"))]
    tokens = [json.loads(out)["token_ids"] for code, out, _ in found if code == 0]
    assert len(tokens) == 2 and tokens[0] == tokens[1] and len(tokens[0]) == 6


def test_the_command_on_a_card(
    bundle: Bundle, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By itself, and when asked; everything is freed when it ends."""
    (_, expected, _) = run(capsys, bundle.folder, "--device", "cpu")
    for more in ((), ("--device", "cuda")):
        card = FakeCard(bundle)
        card.insert(monkeypatch)
        code, out, err = run(capsys, bundle.folder, *more)
        assert (code, err) == (0, "") and card.driver.streams.ran > 0
        assert card.driver.alive["stream"] == 0
        for name in ("token_ids", "logits_hash", "finish_reason"):
            assert json.loads(out)[name] == json.loads(expected)[name]


def test_the_command_on_a_card_that_is_lost(
    bundle: Bundle, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = FakeCard(bundle)
    card.insert(monkeypatch)
    lost = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    monkeypatch.setattr(card.driver.streams, "_run", lambda node: 1 / 0)
    code, out, err = run(capsys, bundle.folder, "--device", "cuda")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("strata-run: cuda: ") and lost.name in err


def test_the_command_on_a_bundle_for_the_cpu_only(
    bundles: Bundles, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, FakeDriver())
    folder = bundles(targets="[cpu]").folder
    code, out, err = run(capsys, folder, "--device", "cuda")
    line = f"strata-run: {folder}: compiled for cpu, not for a GPU; add its target\n"
    assert (code, out, err) == (2, "", line)
    assert run(capsys, folder)[0] == 0
