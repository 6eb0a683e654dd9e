"""plan.yaml to bundle: the compiler.

Reading order: `pipeline.py` (the passes in order), `passes.py` (what every pass goes through), then
the folders in the order of the data: `plan`, `model`, `stages`, `lower`, `dataflow`, `memory`,
`bundle`; beside them `errors.py`, `cli.py` (strata-compile), `progress.py` (its bar) and `debug`
(strata-inspect).
"""

__version__ = "0.1.0"
