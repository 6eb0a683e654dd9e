"""A process that has a program's JSON, the arenas' bytes and one table's bytes, nothing else.

    python replay_process.py FOLDER TABLE

FOLDER holds program.json, memory.json and one file of bytes an arena; TABLE is the table's bytes.
Writes the logits' bytes to standard output.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from strata_runtime.arenas import Arenas
from strata_runtime.bundle_format import MemoryPlan, Program
from strata_runtime.cpu_device import bind, replay
from strata_runtime.records import decode


def main(folder: Path, table: Path) -> None:
    """Replay the program once, with the table as the ring's next entry."""
    plan = decode(MemoryPlan, json.loads((folder / "memory.json").read_text()), "memory")
    program = decode(Program, json.loads((folder / "program.json").read_text()), "program")
    arenas = Arenas(plan)
    for name in plan.arenas:
        data = np.fromfile(folder / name.replace("/", "."), np.uint8)
        arenas.arena(name).copy_(torch.from_numpy(data))
    words = np.fromfile(table, np.int32)
    counter = int(arenas.buffer("0/counter")[0])
    ring = arenas.buffer("0/ring").numpy()
    ring[counter % len(ring), : len(words)] = words
    torch.set_num_threads(1)
    with torch.inference_mode():
        replay(bind(program, arenas))
    (hashing,) = [c for c in program.calls if c.kernel == "logits_hash"]
    sys.stdout.buffer.write(arenas.argument(hashing.args["logits"]).numpy().tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
