# Everything a newcomer needs is `make demo` and `make test`; `make` alone lists the rest.
# Needs Python >= 3.11 with its venv module; the rest is installed into .venv, once.

PYTHON ?= python3
ROUNDS ?= 1000
MINUTES ?= 60
REQUESTS ?= 200000
SEED ?= 1
EXAMPLES ?= 2000
WORKERS ?= 4
CACHE ?= .pytest_cache
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
# torch is pinned there: without a pin pip may choose a build with gigabytes of CUDA libraries.
INSTALL := $(PIP) install --constraint constraints.txt
CODE := shadeproxy sdk tests bench hatch_build.py .ci/dist.py
# What an install compiles, and what does it; pip keeps to itself why it could not.
COMPILED := hatch_build.py $(wildcard $(foreach room,api/s3 core policy engine/index hints,$(foreach kind,pyx pxi,shadeproxy/$(room)/*.$(kind))))
LANE := $(BIN)/python -c 'from shadeproxy.api.s3 import COMPILED; from shadeproxy.core import heads; \
from shadeproxy.policy import kernels; from shadeproxy.engine.index import hash_table; from shadeproxy.hints import job_state; \
all((COMPILED, heads.COMPILED, kernels.COMPILED, hash_table.COMPILED, job_state.COMPILED)) or print("not all is compiled, which \
takes gcc and the Python headers: all works, hits and misses cost more CPU; see docs/operations.md")'
# What `bench` compares with: package=program. Ceph is 300 MB, so only for the suite that needs it.
CEPH := radosgw=radosgw ceph-mon=ceph-mon ceph-osd=ceph-osd ceph-base=monmaptool ceph-common=ceph curl=curl
REFERENCES = nginx-light=nginx wrk=wrk redis-server=redis-server $(if $(QUICK),,$(if $(findstring matrix,$(or $(SUITE),matrix)),$(CEPH)))
# RUNLEVEL=1: the packages must not start services.
INSTALL_REFERENCES = missing=$$(for one in $(REFERENCES); do \
  command -v "$${one\#*=}" > /dev/null || printf '%s ' "$${one%=*}"; done); \
  if [ -z "$$missing" ]; then :; elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
  echo "installing $$missing..."; export DEBIAN_FRONTEND=noninteractive; \
  apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$missing > /dev/null \
  || echo "not all of it could be installed: the rows of what is missing will say so"; \
  else echo "missing: $${missing}- and only root can install them: their rows will say so"; fi
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help chart compiled demo test test-harness check format bench test-rgw clients recipes chaos chaos-cluster crash kills soak attack fuzz fuzz-control model model-test memory overload audit dist lock pictures clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.demo ## Train a model through the proxy, compare, write demo-report/ (about 4 minutes)
	@$(BIN)/shadeproxy demo

# Tests start hundreds of processes, and each would compile all modules where this variable forbids to keep them.
test: export PYTHONDONTWRITEBYTECODE :=
# An engine reserves long columns, of which a test touches little: with huge pages, each touch would clear 2 MB.
test: export NUMPY_MADVISE_HUGEPAGE := 0
# Threads of torch and of numpy would spin while they wait for each other, beside the other processes of tests.
test: export OMP_NUM_THREADS := 1
test: $(VENV)/.dev ## All tests that need no other server
	@# Files of tests side by side, more of them than cores: half of the time they wait. If a test ends its process,
	@# xdist runs it again in a new process. The limit lets such a run end.
	@$(BIN)/python -m pytest -q -o cache_dir=$(CACHE) -m "not rgw" -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  --max-worker-restart 2 -o faulthandler_exit_on_timeout=true

compiled: $(VENV)/.dev ## Print a line if a Cython module is not compiled
	@$(LANE)

check: $(VENV)/.dev ## Format, lint, types, layers
	@$(BIN)/ruff format --check --quiet $(CODE)
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary hatch_build.py .ci/dist.py
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }
	@echo "check: format, lint, types and layers are right"

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff format --quiet $(CODE)
	@$(BIN)/ruff check --quiet --fix $(CODE)

# Debian puts nginx where the PATH of ordinary users does not look.
bench: export PATH := $(PATH):/usr/sbin:/sbin
bench: $(VENV)/.bench ## Measure beside nginx, Ceph RGW and stock clients, write bench/results.md (SUITE=hits,matrix QUICK=1)
	@$(INSTALL_REFERENCES)
	@$(BIN)/shadeproxy bench $(if $(SUITE),--suite $(SUITE)) $(if $(QUICK),--quick) $(if $(ONLY),--only "$(ONLY)")

test-rgw: $(VENV)/.dev ## Tests against Ceph RGW, which must be installed (radosgw, ceph-mon, ceph-osd)
	@$(BIN)/python -m pytest -q -o cache_dir=$(CACHE) -m rgw tests/rgw tests/origin

test-harness: $(VENV)/.dev ## Short runs of `chaos`, `chaos-cluster` and `crash`, and that planted faults make them fail
	@$(BIN)/python -m pytest -q -m harness

clients: $(VENV)/.clients ## Ten real clients on Ceph RGW, direct and through the proxy (CLUSTER=1: through proxies that own nothing); writes docs/clients.md (25 minutes)
	@$(if $(CLUSTER),SHADEPROXY_CLIENTS_CLUSTER=1) SHADEPROXY_CLIENTS_PATH=$(CURDIR)/$(VENV)/awscli/bin SHADEPROXY_CLIENTS_TABLE=docs/clients.md \
	  $(BIN)/python -m pytest -q -m clients tests/clients

recipes: $(VENV)/.recipes ## The scripts of docs/recipes through the proxy, over HTTP and TLS; writes their table (5 minutes)
	@SHADEPROXY_RECIPES_VENV=$(CURDIR)/$(VENV)/recipes SHADEPROXY_RECIPES_TABLE=1 \
	  $(BIN)/python -m pytest -q -m recipes tests/recipes

chart: $(VENV)/.chart ## The Helm chart through Helm itself: strict lint, and the same objects as in the other tests (installs 240 MB)
	@$(BIN)/python -m pytest -q -m helm tests/test_chart.py

crash: $(VENV)/.dev ## kill -9 of proxies at ROUNDS random points (1000, half an hour; SEED=1); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.crash --rounds $(ROUNDS) --seed $(SEED) $(if $(WRITE),--write docs/reliability)

kills: ROUNDS := $(if $(filter file,$(origin ROUNDS)),220,$(ROUNDS))
kills: $(VENV)/.dev ## Workers and coordinators killed or stopped while pages are fetched and objects written (ROUNDS=220 SEED=1, half an hour; ONLY="coordinator, kill -9"); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.kills --rounds $(ROUNDS) --seed $(SEED) $(if $(ONLY),--only "$(ONLY)") $(if $(WRITE),--write docs/reliability)

# Logs and the result are in chaos-report/. Several seeds can run at once.
# MEDIA=1: media that fail for good under acknowledged writes, ROUNDS times; as root with an ext4 image too.
chaos: $(VENV)/.dev ## Faulty origin, faulty disk, killed processes under real clients (MINUTES=60 SEED=1, or MEDIA=1 ROUNDS=300); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.chaos --seed $(SEED) \
	  $(if $(MEDIA),--media --rounds $(ROUNDS),--minutes $(MINUTES) $(if $(WRITE),--write docs/reliability))

# chaos-cluster-report/ has logs, and each violation with the events before it. WRITE=1 continues the rounds of these
# seeds in docs/reliability/. SEED="1 2 3" runs several, one after another.
chaos-cluster: ROUNDS := $(if $(filter file,$(origin ROUNDS)),100,$(ROUNDS))
chaos-cluster: $(VENV)/.dev ## Proxies of one cluster killed, stopped and cut off while objects are written (ROUNDS=100 SEED=1, 20 minutes; LEASE=0.5 KILLS=8 WORKERS=1 NODES=4 NETWORK=auto); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.cluster --rounds $(ROUNDS) --seed $(SEED) $(if $(LEASE),--lease $(LEASE)) $(if $(KILLS),--kills $(KILLS)) $(if $(filter file,$(origin WORKERS)),,--workers $(WORKERS)) $(if $(NODES),--nodes $(NODES)) $(if $(NETWORK),--network $(NETWORK)) $(if $(WRITE),--write docs/reliability)

soak: $(VENV)/.dev ## An hour of full load, every byte compared (MINUTES=60 SEED=1 WORKERS=1); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.soak --minutes $(MINUTES) --seed $(SEED) $(if $(filter file,$(origin WORKERS)),,--workers $(WORKERS)) \
	  $(if $(WRITE),--write docs/reliability)

# attack-report/ has each violation with its bytes, and logs. ONLY="trailer" plays the cases with this text in their names.
attack: MINUTES := $(if $(filter file,$(origin MINUTES)),10,$(MINUTES))
attack: $(VENV)/.dev ## Hostile clients and a hostile origin against real proxies (MINUTES=10 SEED=1); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.attack --minutes $(MINUTES) --seed $(SEED) $(if $(ONLY),--only "$(ONLY)") $(if $(WRITE),--write docs/reliability)

fuzz: $(VENV)/.dev ## Damaged requests against the S3 listener (REQUESTS=200000 SEED=1); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.fuzz --requests $(REQUESTS) --seed $(SEED) $(if $(WRITE),--write docs/reliability)

fuzz-control: $(VENV)/.dev ## Requests made from /openapi.json against the control listener (EXAMPLES=2000 of each call)
	@SHADEPROXY_CONTROL_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q --timeout=7200 -o faulthandler_timeout=7000 tests/e2e/test_openapi.py

# SECONDS bounds each search; its states take up to 4 GB of memory.
model: SECONDS ?= 100
model: ## All states of the cluster's protocol within bounds, random walks, and that each rule is needed (g++; 7 minutes)
	@mkdir -p $(VENV)
	@for nodes in 2 3; do \
	  g++ -O2 -std=c++17 -Wall -Wextra -DNODES=$$nodes bench/models/cluster.cpp -o $(VENV)/cluster-model$$nodes || exit 1; done
	@g++ -O2 -std=c++17 -Wall -Wextra -DNODES=3 -DCOPY=1 bench/models/cluster.cpp -o $(VENV)/cluster-model-copy
	@$(VENV)/cluster-model2 seconds=$(SECONDS)
	@$(VENV)/cluster-model2 reads=0 writes=0 beats=5 ticks=4 crashes=0 lostbeats=0 ghosts=0 seconds=$(SECONDS)
	@$(VENV)/cluster-model3 first=7 views=3 beats=30 ticks=40 writes=4 crashes=2 losses=2 failovers=1 restores=3 lostbeats=3 ghosts=2 \
	  walks=1000000000 seconds=$(SECONDS)
	@$(VENV)/cluster-model-copy views=3 beats=30 ticks=40 writes=4 crashes=2 losses=2 restores=3 lostbeats=3 ghosts=2 \
	  walks=1000000000 seconds=$(SECONDS)
	@$(VENV)/cluster-model-copy mutants=1 seconds=$(SECONDS)

model-test: EXAMPLES := $(if $(filter file,$(origin EXAMPLES)),100000,$(EXAMPLES))
model-test: $(VENV)/.dev ## The cluster's code under random faults, clocks and orders of events, and the engine's under random calls (EXAMPLES=100000, half an hour)
	@MODEL_EXAMPLES=$(EXAMPLES) ENGINE_EXAMPLES=$$(($(EXAMPLES) / 100 + 1)) $(BIN)/python -m pytest -q --timeout=36000 -o faulthandler_timeout=35000 \
	  -n auto --maxprocesses 4 tests/cluster/test_model.py tests/engine/test_state_machine.py

memory: $(VENV)/.dev ## 64 clients each stream 1 GiB up and down (10 minutes, 128 GiB); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.memory $(if $(WRITE),--write docs/reliability)

overload: $(VENV)/.dev ## More clients, slower clients and bigger bodies than there is room for (10 to 15 minutes); WRITE=1 renews docs/reliability/
	@$(BIN)/python -m shadeproxy_bench.reliability.overload $(if $(WRITE),--write docs/reliability)

# --strict: what cannot be looked up fails the audit instead of passing for harmless. The local part of a
# version ("+cpu") is a build, not a release.
audit: $(VENV)/.dev ## Known vulnerabilities of what is installed (asks a public advisory service)
	@$(INSTALL) "pip-audit>=2.9"
	@$(PIP) freeze --exclude-editable | sed -E 's/\+[a-z0-9.]+$$//' > $(VENV)/audit.txt
	@$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement $(VENV)/audit.txt

dist: $(VENV)/.dist ## Build and check sdists and wheels of the three distributions, into dist/
	@$(BIN)/python .ci/dist.py

lock: $(VENV)/.dev ## Write requirements.lock: exact versions of what the proxy needs, as tested here
	@$(BIN)/python -m pip --disable-pip-version-check --quiet install --dry-run --ignore-installed --report - \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"])') \
	  | $(BIN)/python -c 'import json, sys; print(*sorted("%(name)s==%(version)s" % one["metadata"] for one in json.load(sys.stdin)["install"]), sep="\n")' \
	  > requirements.lock

pictures: $(VENV)/.dev ## Renew docs/pictures: the page in Chromium, which must be installed (5 minutes)
	@SHADEPROXY_PAGE_PICTURES=$(CURDIR)/docs/pictures $(BIN)/python -m pytest -q tests/e2e/test_page.py

clean: ## Remove .venv, caches and reports
	@rm -rf $(VENV) demo-report soak-report attack-report chaos-report chaos-cluster-report .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
	@find shadeproxy -name '*.so' -delete

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11; name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "$(PYTHON) lacks venv; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PIP) install --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml sdk/pyproject.toml bench/pyproject.toml constraints.txt $(COMPILED)
	@echo "installing ShadeProxy, its SDK and what the demo trains with; this takes a few minutes, once ..."
	@$(INSTALL) --editable sdk --editable ".[demo]"
	@$(LANE)
	@touch $@

# Not behind .demo, which would build and compile all of it once more.
$(VENV)/.dev: $(VENV)/.made pyproject.toml sdk/pyproject.toml bench/pyproject.toml constraints.txt $(COMPILED)
	@echo "installing ShadeProxy and what tests and checks need; this takes a few minutes, once ..."
	@# Everything in one call: two calls may choose versions that do not fit each other.
	@$(INSTALL) --editable sdk --editable ".[demo,cluster,otel]" --editable bench --group test --group frameworks --group check
	@$(LANE)
	@touch $(VENV)/.demo $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "installing the clients that are compared ..."
	@$(INSTALL) --editable sdk --editable ".[demo,cluster]" --editable "bench[clients]" --group test --group frameworks --group check
	@touch $@

$(VENV)/.dist: $(VENV)/.made pyproject.toml
	@$(INSTALL) --group dist
	@touch $@

$(VENV)/.chart: $(VENV)/.dev
	@$(INSTALL) --group chart
	@touch $@

$(VENV)/.clients: $(VENV)/.dev
	@echo "installing the clients that are tested ..."
	@$(INSTALL) --editable sdk --editable ".[demo,cluster,otel]" --editable bench --group test --group frameworks --group check --group clients
	@# awscli asks for a botocore of its own, which need not be that of aiobotocore.
	@$(PYTHON) -m venv $(VENV)/awscli
	@$(VENV)/awscli/bin/python -m pip --disable-pip-version-check --quiet --quiet install awscli
	@touch $@

# mosaicml-streaming needs an older numpy and transformers than the others. It imports torchvision for pictures;
# a torchvision that fits torch's build for CPUs is in no usual index, and this older one does without its compiled part.
$(VENV)/.recipes: $(VENV)/.dev docs/recipes/requirements.txt
	@echo "installing the clients of docs/recipes; this takes a few minutes, once ..."
	@for name in recipes recipes-mosaicml-streaming; do $(BIN)/python -m venv $(VENV)/$$name \
	  && $(VENV)/$$name/bin/python -m pip --disable-pip-version-check --quiet --quiet install --upgrade "pip>=25.1" || exit 1; done
	@$(VENV)/recipes/bin/python -m pip --disable-pip-version-check --quiet --quiet install --constraint constraints.txt \
	  --requirement docs/recipes/requirements.txt
	@$(VENV)/recipes-mosaicml-streaming/bin/python -m pip --disable-pip-version-check --quiet --quiet install \
	  --constraint constraints.txt mosaicml-streaming
	@$(VENV)/recipes-mosaicml-streaming/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-deps torchvision==0.16.2
	@touch $@
