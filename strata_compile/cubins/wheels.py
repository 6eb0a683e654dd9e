"""Where NVIDIA's wheels put their files; none of them is imported."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

#: The compiler's wheel by NVRTC's major version.
COMPILERS = {13: "nvidia-cuda-nvrtc", 12: "nvidia-cuda-nvrtc-cu12"}

#: Wheels with headers by NVRTC's major version, each with a file that stands in its include folder.
HEADERS = {
    13: (("nvidia-cuda-runtime", "cuda_fp16.h"), ("nvidia-cuda-crt", "crt/host_defines.h")),
    12: (("nvidia-cuda-runtime-cu12", "cuda_fp16.h"),),
}


@dataclass(frozen=True)
class WheelFile:
    """A file that an installed wheel lists, and the wheel's version."""

    path: Path
    version: str


@dataclass(frozen=True)
class Headers:
    """CUDA's include folders, and the wheels that they are from: names and versions."""

    folders: tuple[Path, ...]
    wheels: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The folders as NVRTC takes them."""
        return tuple(f"--include-path={folder}" for folder in self.folders)


def wheel_file(wheel: str, ending: str) -> WheelFile | None:
    """The wheel's file whose path ends in these parts; None where one of the two is missing."""
    try:
        found = importlib.metadata.distribution(wheel)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in found.files or ():
        if file.match(ending):
            path = Path(str(found.locate_file(file))).resolve()
            return WheelFile(path, found.version) if path.is_file() else None
    return None


def cuda_headers(major: int) -> Headers | None:
    """The headers that go with NVRTC 12 or 13; None where a wheel is missing or of another CUDA."""
    folders: list[Path] = []
    wheels: list[str] = []
    for wheel, file in HEADERS[major]:
        found = wheel_file(wheel, f"include/{file}")
        if found is None or not found.version.startswith(f"{major}."):
            return None
        folders.append(found.path.parents[file.count("/")])
        wheels.append(f"{wheel} {found.version}")
    return Headers(tuple(dict.fromkeys(folders)), tuple(wheels))
