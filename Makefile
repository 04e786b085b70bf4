# make quickstart   a first sweep on this machine, everything installed into .venv
# make check        formatting, lint, types, unit tests, which start no process: after an edit
# make test         what a newcomer runs: unit tests, the verbs as processes, local MPI, a real one-machine Slurm, PyTorch
# make test-all     that, all frameworks, and what takes longer: faults, campaigns
# make bench        what takes longer: the wrapper's own cost, models beside others', reading logs, 10 000 runs
# make long         published sweeps, loss curves, benchmarks in short, the acceptance pack, fuzzing: before a release
# make faults       a sweep under every fault there is, on a real Slurm: what is lost, doubled, altered
# make attacks      what another user of the file system may plant: what is written, run, leaked
# make mistakes     what a newcomer types wrong, and the answers: docs/mistakes.md
# make metrics      how large the package is, beside bounds and goals (tests/support/metrics.toml)
# make mutants      do tests fail when code is wrong? N=200 small faults, each with the tests of its line; by hand
# make containers   ranks in Apptainer under a real Slurm; gets Apptainer from Debian's unstable
# make slurm-newer  tests/slurm on a Slurm of today: Debian SUITE (trixie) unpacked into DIR; as root, by hand
# make fuzz         an hour (FUZZ_SECONDS) of coverage-guided fuzzing of the log scanner
# make gpu          what a first run on a GPU must show, 36 minutes at most: $GPU_OUT or gpu-<date>/; of four
#                   calls of 9 minutes one: GPU_ARGS="--only 1"
# make gpu-wheels   for a machine without a network: what its Python (GPU_PYTHON=3.12) lacks, in GPU_WHEELS
# make lint         formatting, lint, types
# make envs         .envs/frameworks, an environment for all frameworks that .venv does not have;
#                   of one of them alone: make env-deepspeed, env-tensorflow, env-horovod
# ARGS goes to pytest: make test ARGS="-k window"

PYTHON ?= python3
VENV ?= .venv
ENVS ?= .envs
FRAMEWORKS = frameworks deepspeed tensorflow horovod
CONSTRAINTS ?= requirements/constraints.txt
GPU_WHEELS ?= build/gpu-wheels
GPU_PYTHON ?= 3.12
RUN = $(VENV)/bin/python
SUITE ?= trixie
DIR ?= /var/tmp/dlperf-$(SUITE)
STAMP := $(shell date +%Y%m%d-%H%M%S)

# These run side by side. Tests that start ranks or a cluster wait more than they compute: four files at a time.
UNIT = tests/unit
PARALLEL = $(UNIT) tests/processes
CLOCKED = tests/mpi tests/browser tests/slurm tests/frameworks/torch
LONGER = tests/campaigns
# Not asked of CI: what Debian has in its unstable part alone, and what takes minutes by itself.
APART = tests/containers tests/long
# A folder in which ARGS leave no test (pytest's 5) is no failure.
pytest = OMP_NUM_THREADS=1 $(RUN) -m pytest $(1) $(ARGS)$(if $(ARGS), || test $$? -eq 5)
parallel = $(call pytest,--numprocesses auto --maxprocesses 8 $(1))
# Most of these wait, for a queue or for ranks. A file's tests stay together, and so does what they share; files
# begin in the order of tests/conftest.py, the slowest first (by xdist's own, a file of few long tests is the last).
clocked = $(call pytest,--numprocesses 4 --dist loadfile --no-loadscope-reorder -m 'not long' $(1))

.PHONY: quickstart check test test-all test-longer bench long faults attacks mistakes metrics mutants containers fuzz gpu gpu-wheels lint clean slurm slurm-newer browser
.PHONY: install envs $(FRAMEWORKS:%=env-%)

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "$(PYTHON) has no venv module: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml $(CONSTRAINTS) | $(RUN)
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[mpi,torch]'
	touch $@

# What .base has, and more.
$(VENV)/.test: pyproject.toml $(CONSTRAINTS) | $(RUN)
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[mpi,torch,test]'
	touch $(VENV)/.base $@

envs: env-frameworks

$(FRAMEWORKS:%=env-%): env-%: $(ENVS)/%/.done

$(ENVS)/frameworks/.done: requirements/deepspeed.txt requirements/horovod.txt

$(ENVS)/%/.done: requirements/%.txt $(CONSTRAINTS) $(wildcard requirements/*.sh requirements/*.py)
	PYTHON=$(PYTHON) CONSTRAINTS=$(CONSTRAINTS) sh requirements/environment.sh $* $(ENVS)/$*
	touch $@

quickstart: $(VENV)/.base
	$(RUN) -m dlperf_hpc.sweep sweeps/quickstart.toml --name quickstart-$(STAMP)

slurm:
	sh slurm/install.sh

slurm-newer:
	sh slurm/newer.sh $(SUITE) $(DIR) $(ARGS)

# After Slurm's packages: two apt-get at a time are one too many.
browser: | slurm
	sh tests/support/browser.sh

# The package compiled once: else each of thousands of commands compiles it anew where PYTHONDONTWRITEBYTECODE is set.
install:
	@$(MAKE) --no-print-directory --jobs 2 $(VENV)/.test slurm browser
	@$(RUN) -m compileall -q dlperf_hpc

check: lint
	$(call parallel,$(UNIT) -m 'not processes')

test: install
	$(call parallel,$(PARALLEL))
	$(call clocked,$(CLOCKED))

test-all: test test-longer

# The faults first, which take longest and mostly wait; then whatever else there is below tests.
test-longer: install env-frameworks
	DLPERF_ENVS=$(abspath $(ENVS)) $(call clocked,$(LONGER) tests $(patsubst %,--ignore %,$(PARALLEL) $(CLOCKED) $(APART)))

# On a machine with a GPU, whose $(PYTHON) has torch; $(GPU_WHEELS) are what it lacks, if it has no network.
gpu:
	PYTHON=$(PYTHON) sh requirements/gpu.sh run $(GPU_WHEELS) $(GPU_ARGS)

gpu-wheels: $(VENV)/.base
	PYTHON=$(RUN) sh requirements/gpu.sh wheels $(GPU_WHEELS) $(GPU_PYTHON)

lint: $(VENV)/.test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(VENV)/.test env-frameworks slurm browser
	$(RUN) benchmarks/startup.py
	OMP_NUM_THREADS=1 $(RUN) benchmarks/wrapper_cost.py
	for each in deepspeed tensorflow horovod-torch horovod-tensorflow; do \
	  OMP_NUM_THREADS=1 $(ENVS)/frameworks/bin/python benchmarks/wrapper_cost.py \
	    --framework $$each || exit 1; done
	OMP_NUM_THREADS=1 $(RUN) benchmarks/models.py --device cpu --models bert-tiny gpt2-tiny \
	  --precisions fp32 --batch-size 4 --warmup 3 --iterations 6
	OMP_NUM_THREADS=1 $(RUN) benchmarks/train_real_text.py
	$(RUN) benchmarks/scan_logs.py
	$(RUN) benchmarks/ten_thousand.py
	$(RUN) benchmarks/many_reports.py
	$(RUN) benchmarks/history.py
	$(RUN) benchmarks/history_real.py
	$(RUN) benchmarks/nodes.py
	$(RUN) benchmarks/flags.py
	$(RUN) benchmarks/stop_after_window.py
	$(RUN) benchmarks/page.py
	$(RUN) benchmarks/programs.py
	OMP_NUM_THREADS=1 $(RUN) benchmarks/same_loop.py

long: install env-frameworks
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[fuzz]'
	DLPERF_ENVS=$(abspath $(ENVS)) $(call pytest,tests -m long)

faults: $(VENV)/.test slurm
	OMP_NUM_THREADS=1 $(RUN) tests/campaigns/faults/campaign.py --markdown docs/faults.md

mistakes: $(VENV)/.test
	$(RUN) tests/support/mistakes.py

metrics: $(VENV)/.test
	$(RUN) tests/support/metrics.py --loaded

mutants: $(VENV)/.test
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) pytest-cov
	$(RUN) tests/support/mutants.py --number $(or $(N),200) --jobs $(or $(JOBS),1)

attacks: $(VENV)/.test
	OMP_NUM_THREADS=1 $(RUN) tests/campaigns/attacks/campaign.py --markdown docs/attacks.md

$(ENVS)/apptainer/.done: tests/support/apptainer.sh | $(VENV)/.test
	sh tests/support/apptainer.sh $(ENVS)/apptainer $(RUN)
	touch $@

containers: $(VENV)/.test slurm $(ENVS)/apptainer/.done
	$(call pytest,$(APART))

fuzz: $(VENV)/.test
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[fuzz]'
	DLPERF_LONG_DAMAGE=1 $(RUN) -m pytest tests/unit/logs/test_damage.py
	PYTHONPATH=tests/support:tests/campaigns $(RUN) -m fuzz.fuzz_scan

clean:
	rm -rf $(VENV) $(ENVS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
