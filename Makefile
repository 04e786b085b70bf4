# make quickstart   a first sweep on this machine, everything installed into .venv
# make test         the tests, on a real one-machine Slurm, with all frameworks
# make bench        what takes longer: the wrapper's own cost, models beside others', reading logs, 10 000 runs
# make faults       a sweep under every fault there is, on a real Slurm: what is lost, doubled, altered
# make fuzz         an hour (FUZZ_SECONDS) of coverage-guided fuzzing of the log scanner
# make lint         formatting, lint, types
# make envs         an environment for each framework that .venv does not have, below .envs;
#                   one of them: make env-deepspeed, env-tensorflow, env-horovod

PYTHON ?= python3
VENV ?= .venv
ENVS ?= .envs
FRAMEWORKS = deepspeed tensorflow horovod
CONSTRAINTS ?= requirements/constraints.txt
RUN = $(VENV)/bin/python
STAMP := $(shell date +%Y%m%d-%H%M%S)

.PHONY: quickstart test bench faults fuzz lint clean slurm envs $(FRAMEWORKS:%=env-%)

$(VENV)/.base: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "$(PYTHON) has no venv module: apt-get install python3-venv"; exit 2; }
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[mpi,torch]'
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[mpi,torch,test]'
	touch $@

envs: $(FRAMEWORKS:%=env-%)

$(FRAMEWORKS:%=env-%): env-%: $(ENVS)/%/.done

$(ENVS)/%/.done: requirements/%.txt $(CONSTRAINTS) $(wildcard requirements/*.sh requirements/*.py)
	PYTHON=$(PYTHON) CONSTRAINTS=$(CONSTRAINTS) sh requirements/environment.sh $* $(ENVS)/$*
	touch $@

quickstart: $(VENV)/.base
	$(RUN) -m dlperf_hpc.sweep sweeps/quickstart.toml --name quickstart-$(STAMP)

slurm:
	sh slurm/install.sh

test: $(VENV)/.test slurm envs
	OMP_NUM_THREADS=1 $(RUN) -m pytest $(ARGS)

lint: $(VENV)/.test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(VENV)/.test envs slurm
	$(RUN) benchmarks/startup.py
	OMP_NUM_THREADS=1 $(RUN) benchmarks/wrapper_cost.py
	for each in deepspeed:deepspeed tensorflow:tensorflow horovod:horovod-torch horovod:horovod-tensorflow; do \
	  OMP_NUM_THREADS=1 $(ENVS)/$${each%:*}/bin/python benchmarks/wrapper_cost.py \
	    --framework $${each#*:} || exit 1; done
	OMP_NUM_THREADS=1 $(RUN) benchmarks/models.py --device cpu --models bert-tiny gpt2-tiny \
	  --precisions fp32 --batch-size 4 --warmup 5 --iterations 10
	OMP_NUM_THREADS=1 $(RUN) benchmarks/train_real_text.py
	$(RUN) benchmarks/scan_logs.py
	$(RUN) benchmarks/ten_thousand.py

faults: $(VENV)/.test slurm
	OMP_NUM_THREADS=1 $(RUN) tests/campaigns/faults/campaign.py --markdown docs/faults.md

fuzz: $(VENV)/.test
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[fuzz]'
	DLPERF_LONG_DAMAGE=1 $(RUN) -m pytest tests/unit/logs/test_damage.py
	PYTHONPATH=tests/support:tests/campaigns $(RUN) -m fuzz.fuzz_scan

clean:
	rm -rf $(VENV) $(ENVS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
