"""Where a plan's model lies: a path, or `package:NAME/FILE`."""

from __future__ import annotations

import importlib.util
import os.path
from pathlib import Path

from strata_runtime.errors import ModelError

_PACKAGE = "package:"


def find_model(reference: str, folder: Path, cache: Path) -> Path:
    """The file that `reference` names; a path is relative to `folder`.

    `package:NAME/FILE` is looked up in an installed package, then in `cache`. ModelError says
    where it was looked for.
    """
    if not reference.startswith(_PACKAGE):
        try:
            return folder / Path(reference).expanduser()
        except RuntimeError as error:  # ~name of a user who is not there
            raise ModelError(f"model {reference!r}: {error}") from error
    name, _, file = reference.removeprefix(_PACKAGE).partition("/")
    if not name.isidentifier() or not file or file[0] == "/" or ".." in Path(file).parts:
        raise ModelError(f"model {reference!r}: write package:NAME/FILE")
    places = [*_package_folders(name), cache / "models" / name]
    for place in places:
        if os.path.isfile(place / file):  # False for every OSError
            return place / file
    looked = ", ".join(str(p) for p in places)
    raise ModelError(f"model {reference!r}: not in {looked}; `make model` fetches the example's")


def _package_folders(name: str) -> list[Path]:
    """Folders of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # such as `__main__`, which has none
        return []
    return [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
