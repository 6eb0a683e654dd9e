"""Where a model is looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from strata_runtime.errors import ModelError
from strata_runtime.model_source import find_model

#: What a package's __init__ does here: it must not be run.
TRAP = "raise RuntimeError('imported')\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a model, and one with none."""
    folder = tmp_path / "site" / "strata_test_package"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text(TRAP)
    (folder / "m.gguf").touch()
    (folder / "deep" / "m.gguf").touch()
    (tmp_path / "site" / "strata_test_module.py").write_text(TRAP)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


def cached(cache: Path, name: str, file: str) -> Path:
    """A file in the cache, made."""
    path = cache / "models" / name / file
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_path_is_relative_to_the_folder(tmp_path: Path) -> None:
    """It need not be there: opening it says so."""
    assert find_model("a/m.gguf", tmp_path, Path("c")) == tmp_path / "a" / "m.gguf"
    assert find_model("../m.gguf", tmp_path, Path("c")) == tmp_path / ".." / "m.gguf"
    assert find_model("/abs/m.gguf", tmp_path, Path("c")) == Path("/abs/m.gguf")


def test_a_path_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_model("~/m.gguf", Path("plans"), Path("c")) == tmp_path / "m.gguf"


def test_the_home_of_an_unknown_user(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="strata-no-such-user"):
        find_model("~strata-no-such-user/m.gguf", tmp_path, tmp_path)


@pytest.mark.parametrize("file", ["m.gguf", "deep/m.gguf"])
def test_an_installed_package(package: Path, tmp_path: Path, file: str) -> None:
    found = find_model(f"package:strata_test_package/{file}", tmp_path, tmp_path / "cache")
    assert found == package / file
    assert "strata_test_package" not in sys.modules


def test_the_package_comes_before_the_cache(package: Path, tmp_path: Path) -> None:
    cached(tmp_path, "strata_test_package", "m.gguf")
    assert (
        find_model("package:strata_test_package/m.gguf", tmp_path, tmp_path) == package / "m.gguf"
    )


@pytest.mark.parametrize("name", ["strata_test_package", "strata_not_installed"])
def test_the_cache(package: Path, tmp_path: Path, name: str) -> None:
    expected = cached(tmp_path, name, "other.gguf")
    assert find_model(f"package:{name}/other.gguf", Path("elsewhere"), tmp_path) == expected


@pytest.mark.parametrize("name", ["strata_test_package", "strata_test_module", "strata_absent"])
def test_where_it_was_looked_for(package: Path, tmp_path: Path, name: str) -> None:
    (package / "folder.gguf").mkdir()
    with pytest.raises(ModelError, match="make model") as caught:
        find_model(f"package:{name}/folder.gguf", tmp_path, tmp_path)
    assert str(tmp_path / "models" / name) in str(caught.value)
    assert (str(package) in str(caught.value)) == (name == "strata_test_package")


@pytest.mark.parametrize(
    "reference",
    [
        "package:",
        "package:name",
        "package:name/",
        "package:/m.gguf",
        "package:a.b/m.gguf",
        "package:a-b/m.gguf",
        "package:../m.gguf",
        "package:strata_test_package/../m.gguf",
        "package:strata_test_package/deep/../../m.gguf",
    ],
)
def test_what_is_no_reference(package: Path, tmp_path: Path, reference: str) -> None:
    with pytest.raises(ModelError, match="write package:NAME/FILE"):
        find_model(reference, tmp_path, tmp_path)


def test_an_absolute_file_is_not_in_a_package(package: Path, tmp_path: Path) -> None:
    """Joined to the package's folder, it would replace it."""
    outside = tmp_path / "outside.gguf"
    outside.touch()
    with pytest.raises(ModelError, match="package:NAME/FILE"):
        find_model(f"package:strata_test_package/{outside}", tmp_path, tmp_path)


def test_a_name_without_a_spec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such as `__main__` in a script."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(ModelError, match="not in"):
        find_model("package:__main__/m.gguf", tmp_path, tmp_path)
