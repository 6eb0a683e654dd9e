"""One file per kernel, every kernel in the registry, and declarations without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import strata_kernels
from kernel_case import DTYPES
from kernel_examples import ALL, IDS
from strata_kernels.registry import KERNELS
from strata_kernels.spec import Region


def test_a_kernel_has_the_name_of_its_file() -> None:
    folder = Path(strata_kernels.__file__).parent
    files = {p.stem for p in folder.glob("*.py") if "\nSPEC = KernelSpec(" in p.read_text()}
    assert files == KERNELS.keys() == {spec.name for spec in KERNELS.values()}


def test_declarations_need_no_torch() -> None:
    """The compiler reads declarations only."""
    code = "import sys, strata_kernels.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("name", "params"), ALL, ids=IDS)
def test_arguments_are_well_formed(name: str, params: Any) -> None:
    args = KERNELS[name].args(params)
    assert len({a.name for a in args}) == len(args)
    assert any(a.writes for a in args)
    for arg in args:
        assert arg.reads or arg.writes
        assert arg.dtype in DTYPES
        assert all(n > 0 for n in arg.shape[1:]) and (arg.shape[0] > 0 or arg.shape[0] == -1)
        if arg.shape[0] == -1:  # of an unknown length: a part of it, named by the table
            assert Region.WHOLE not in (arg.reads, arg.writes)
