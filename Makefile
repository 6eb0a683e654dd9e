# make demo: a real model answers.  make test: everything that has to pass.  make soak: the tests
# that take minutes each, which look for what only long runs and whole products of cases show.
# Everything is installed into .venv; the model goes to a cache folder outside the repository.

PYTHON ?= python3
BIN := .venv/bin
BUNDLE := bundles/smollm2
QUESTION ?= What is the capital of France?

.PHONY: demo test soak model lint clean

demo: model
	$(BIN)/strata-compile examples/smollm2.yaml -o $(BUNDLE)
	@echo
	@echo "> $(QUESTION)"
	$(BIN)/strata-run $(BUNDLE) --chat "$(QUESTION)" --max-tokens 64
	@echo
	@echo "That was $(BUNDLE), compiled from examples/smollm2.yaml. What to type next:"
	@echo "  $(BIN)/strata-run $(BUNDLE) --chat 'Write a haiku about the sea.'"
	@echo "  $(BIN)/strata-run $(BUNDLE) --prompt 'Once upon a time' --temperature 0.8 --seed 7"
	@echo "  $(BIN)/strata-run $(BUNDLE) --chat 'Hello!' --json"
	@echo "  $(BIN)/strata-inspect $(BUNDLE)"
	@echo "  $(BIN)/strata-compile examples/smollm2.yaml -o $(BUNDLE) --dump dump"
	@echo "  make test"

# One process a core, so torch takes one thread each; tests that need more say so.
test: model lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --need-model -q

soak: model
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal --need-model --soak -m soak -q

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

model: .venv/installed
	$(BIN)/python examples/fetch_model.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv bundles dump build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
