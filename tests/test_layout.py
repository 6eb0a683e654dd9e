"""Layout rules that reviewers would otherwise repeat."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import strata_compile
import strata_kernels
import strata_runtime
from strata_kernels.registry import KERNELS
from strata_runtime.options import VARIABLES

ROOT = Path(__file__).parent.parent
FOLDERS = ("strata_compile", "kernels", "runtime", "tests", "examples")
TOP = {
    *("pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt", "docs"),
    *("strata_compile", "templates", "kernels", "runtime", "tests", "examples"),
    *(".ci", ".typing", ".gitignore"),
}


def test_files_stay_short() -> None:
    """No source file has more than 400 lines."""
    files = [f for top in FOLDERS for f in (ROOT / top).rglob("*.py")]
    files += (ROOT / "templates").glob("*.j2")
    assert len(files) > 100
    assert not [str(f.relative_to(ROOT)) for f in files if len(f.read_text().splitlines()) > 400]


def test_each_kernel_has_its_template() -> None:
    """A kernel's name, its Python file and its CUDA template are one word."""
    templates = {f.name.removesuffix(".cu.j2") for f in (ROOT / "templates").glob("[!_]*.cu.j2")}
    files = {f.stem for f in (ROOT / "kernels").glob("*.py")}
    assert set(KERNELS) == templates and templates <= files


def test_only_the_agreed_names_stand_at_the_top() -> None:
    """What git tracks lies in the folders of the design."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    assert {name.split("/")[0] for name in listed.stdout.split()} <= TOP


def test_every_module_imports() -> None:
    """Each module can be imported by itself."""
    for package in (strata_compile, strata_kernels, strata_runtime):
        for m in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not m.name.endswith("__main__"):
                assert importlib.import_module(m.name).__doc__, m.name


@pytest.mark.parametrize(
    "module",
    [
        "strata_compile.cli",
        "strata_compile.pipeline",
        "strata_compile.debug.cli",
        "strata_runtime.bench_cli",
        "strata_runtime.cli",
    ],
)
def test_torch_is_imported_only_to_run(module: str) -> None:
    """A mistyped argument must not cost the second that torch takes."""
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("package", [strata_compile, strata_kernels, strata_runtime])
def test_reading_order_is_complete(package: object) -> None:
    """The docstring of a package names each of its files."""
    folder, text = Path(package.__path__[0]), package.__doc__ or ""  # type: ignore[attr-defined]
    names = [f.stem for f in folder.glob("*.py") if not f.stem.startswith("__")]
    assert not [n for n in names if f"`{n}.py`" not in text and f"`{n}`" not in text]


def test_the_readme_lists_every_variable() -> None:
    """The README's table is the one of the code."""
    readme = (ROOT / "README.md").read_text()
    for name, meaning in VARIABLES.items():
        assert f"| `{name}` | {meaning} |" in readme
