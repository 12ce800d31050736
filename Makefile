# Every target sets up .venv first, if it is not there or its requirements changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

PEERS := $(VENV)/peers/allennlp-2.10.1
MANYLANGS := $(VENV)/peers/elmoformanylangs-0.0.4.post2

.PHONY: help demo test fuzz lint parity conformance bench clean

help:
	@echo "make demo   in a minute: a word's nearest uses, a tagger with and without ELMo, two pictures, a page for the browser"
	@echo "make test   run the tests"
	@echo "make fuzz   damage every kind of file that is read, 20,000 times, and say what became of it"
	@echo "make lint   ruff and mypy"
	@echo "make parity compare every layer with AllenNLP's and ELMoForManyLangs' (fetches their packages)"
	@echo "make conformance run transformers' own common test suites on every class (fetches its source distribution)"
	@echo "make bench  measure the speed, against AllenNLP and the machine, and draw it (fetches AllenNLP)"
	@echo "make clean  remove .venv and caches"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python -m training.demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

fuzz: $(READY)
	$(BIN)/python tests/fuzz.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# AllenNLP's files alone: its requirements no longer install.
$(PEERS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/peers allennlp==2.10.1
	@touch $@

$(MANYLANGS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/peers elmoformanylangs==0.0.4.post2
	@touch $@

parity: $(PEERS) $(MANYLANGS)
	$(BIN)/python -m pytest -q -s tests/test_allennlp_parity.py
	$(BIN)/python -m pytest -q -s tests/test_convert_families.py -k original

# The suites come in the source distribution of the transformers that is installed.
conformance: $(READY)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest .conformance \
		transformers==$$($(BIN)/python -c 'import transformers; print(transformers.__version__)')
	for archive in .conformance/transformers-*.tar.gz; do tar --extract --gzip --file $$archive --directory .conformance; done
	$(BIN)/python -m pytest -q -n 2 tests/test_common.py

bench: $(PEERS)
	$(BIN)/python benchmarks/versus_allennlp.py
	$(BIN)/python benchmarks/gemm_share.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/precision.py
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/vocabulary.py
	$(BIN)/python benchmarks/plot.py

clean:
	rm -rf $(VENV) .conformance .mypy_cache .pytest_cache .ruff_cache .hypothesis build demo dist *.egg-info
