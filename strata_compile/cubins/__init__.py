"""Programs to cubins, with no driver on the machine.

Reading order: `units.py` (which entries are compiled together), `wheels.py` (where NVIDIA's wheels
put their files), `nvrtc.py` (the compiler, versions 12 and 13 in one process), `cache.py` (cubins
by the hash of all that they depend on), `compile.py` (units and architectures to cubins, in
threads), `resources.py` (registers, shared and local bytes out of a cubin), `entries.py` (the pass
that uses them all).
"""
