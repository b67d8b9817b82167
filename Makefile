# From a fresh clone: `make demo`, `make quick`, `make test`. The first run makes .venv; later runs start at once.

VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find kafkabuf -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
KAFKA_VERSION ?= 4.1.2
# More flags for the C compiler when it builds our extensions, and only then: .ci/run says -Werror.
BUILD_CFLAGS ?=
ARGS ?=
FUZZ_SECONDS ?= 60
SEEDS ?= 1000
SANITIZE_SECONDS ?= 60
PYTEST = $(BIN)/python -m pytest -q
# For tools that need the standard library alone: they run before there is a .venv, too.
ANY_PYTHON = $(or $(wildcard $(BIN)/python),$(PYTHON),python3)
RELEASE := build/release
COMPILE = env CFLAGS="$(CFLAGS) $(BUILD_CFLAGS)" $(BIN)/python setup.py --quiet build_ext --inplace
WHEELS ?= dist

# Spark starts its Python workers with this one.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help build java demo demo-kafka quick test test-all test-whole fetch slowest
.PHONY: kerberos test-kerberos test-peers test-pythons test-spark-kills test-spark-kill test-spark-versions test-spark-wheels wheel wheels sdist sbom
.PHONY: simulate fuzz fuzz-api sanitize sanitize-core test-portable lint format docs docs-check bench bench-spool bench-gate bench-accept lock clean

help:  ## Show this help
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 28

# Each stamp is touched last, so that a step that was interrupted is done again.
$(VENV)/.locked: requirements/build.lock requirements/test.lock tools/bootstrap.sh
	@tools/bootstrap.sh venv $(VENV) $(COMPILE)
	@touch $@

$(VENV)/.installed: $(VENV)/.locked setup.py pyproject.toml
	@KAFKABUF_BUILT_IN_PLACE=1 PYTHONWARNINGS="ignore:Editable installation" \
		$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(NATIVE)
	@echo "kafkabuf: building the extensions ..."
	@$(COMPILE)
	@touch $@

$(VENV)/.bench: $(VENV)/.built requirements/bench.lock
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/bench.lock
	@touch $@

# Compiled against Kerberos's headers, with the build tools of the lock file.
$(VENV)/.gssapi: $(VENV)/.built requirements/gssapi.lock
	@$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements/gssapi.lock
	@touch $@

$(VENV)/.docs: $(VENV)/.built requirements/docs.lock
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/docs.lock
	@touch $@

build/docs/mermaid.min.js: tools/site/mermaid.py
	@$(ANY_PYTHON) -m tools.site.mermaid $@

build: $(VENV)/.built  ## Make .venv and build the extensions in place

java:
	@tools/bootstrap.sh check-java

kerberos: build
	@$(BIN)/python -m rigs.kdc

demo: java build  ## Publish flights.csv with Spark and check what arrived (ARGS: see `kafkabuf demo --help`)
	@$(BIN)/kafkabuf demo $(ARGS)

demo-kafka: java build  ## Run the demo against a real Apache Kafka (KAFKA_VERSION=4.1.2)
	@$(BIN)/python -m rigs.real_kafka --version $(KAFKA_VERSION) $(BIN)/kafkabuf demo --bootstrap-servers {} $(ARGS)

quick: build  ## Run the tests that start no process, in a minute; needs no Java, no download (ARGS go to pytest)
	@$(BIN)/python -m tests.quick $(ARGS)

test: fetch  ## Run every part once, real Apache Kafka and Spark included, in some 12 minutes (ARGS go to one pytest)
	@$(if $(ARGS),$(PYTEST) -m "not slow" $(ARGS),$(BIN)/python -m tests)

test-all: test-whole test-spark-kills test-spark-versions test-spark-wheels simulate fuzz sanitize test-portable test-peers test-kerberos  ## Run everything: kills, other PySparks, clusters, long simulations, fuzzers, sanitizers too (hours)

test-whole: fetch  ## Run the slow tests too, and all seeds and examples of the randomised tests
	@$(BIN)/python -m tests.spark.versions --fetch
	@$(BIN)/python -m tests --slow

fetch: java build
	@$(BIN)/python -m rigs.real_kafka --fetch
	@$(BIN)/python -m tests.spark.versions --fetch 3.5

slowest: build  ## Print the slowest 20 tests of the last `make test` or `make test-whole`
	@$(BIN)/python -m tools.slowest build/tests/*.xml

test-pythons:  ## Run `make test` under each CPython from 3.11 on that is found; TARGET (test), ONLY (3.13)
	@$(ANY_PYTHON) -m tools.pythons $(if $(ONLY),--only $(ONLY)) $(or $(TARGET),test)

test-peers: fetch  ## Run other clients' own tests: their producers' with our faces, all of them against the embedded cluster
	@$(BIN)/python -m tools.every_peer $(ARGS)
	@$(BIN)/python -m tools.suites

test-kerberos: kerberos java $(VENV)/.gssapi  ## Run GSSAPI against MIT's KDC and real Kafka, from Spark too (needs krb5-kdc; ARGS go to pytest)
	@$(BIN)/python -m rigs.real_kafka --fetch
	@$(PYTEST) tests/real/kerberos_attacks.py tests/real/kerberos.py tests/real/kerberos_spark.py $(ARGS)

test-spark-kills: java build  ## Kill Spark's processes at every step of each guarantee, and at random (ARGS: --help)
	@$(BIN)/python -m rigs.real_kafka --fetch
	@$(BIN)/python -m tests.spark.kills $(ARGS)
	@$(BIN)/python -m tests.spark.kills --value-format avro --step mid-produce --kills 5 $(ARGS)
	@$(BIN)/python -m tests.spark.kills --via foreach_batch --broker embedded --kills 0 $(ARGS)
	@$(BIN)/python -m tests.spark.kills --via connect --broker embedded --kills 0 $(ARGS)
	@$(BIN)/python -m tests.spark.kills --victim "executor but its worker" --victim "every executor" --broker embedded --no-steps $(ARGS)
	@$(BIN)/python -m tests.spark.kills --victim nobody --speculation --guarantee exactly_once --broker embedded --no-steps $(ARGS)
	@$(BIN)/python -m tests.spark.kills --node-kills 20 --guarantee atomic --broker embedded-3 --broker 4.1.2-3 --no-steps $(ARGS)

test-spark-kill: java build  ## Kill Spark's processes at one step of each guarantee, on the embedded broker
	@$(BIN)/python -m tests.spark.kills --broker embedded --step mid-produce --kills 0 $(ARGS)

test-spark-versions: java build  ## Run Spark's tests under the oldest PySpark that we support and the newest (ARGS go to pytest)
	@$(BIN)/python -m tests.spark.versions \
		tests/spark/test_sink.py tests/spark/test_stream.py tests/spark/test_clusters.py \
		tests/spark/options/test_formats.py tests/spark/test_formats_in_spark.py $(ARGS)

test-spark-wheels: java build  ## Run Spark jobs on executors that have nothing but the wheel (ARGS go to pytest)
	@$(BIN)/python -m tools.wheel --here --once --smoke-only
	@$(BIN)/python -m pytest tests/spark/wheels.py $(ARGS)

simulate: build  ## Run producers against embedded nodes in virtual time, under random trouble: SEEDS (1000); ARGS: --help
	@$(BIN)/python -m tests.virtual --seeds $(SEEDS) $(ARGS)

fuzz: build  ## Give the broker hostile requests for FUZZ_SECONDS (60); faults are kept in build/fuzz (ARGS: --workers 2)
	@$(BIN)/python -m tests.hostile.fuzz_requests --seconds $(FUZZ_SECONDS) $(ARGS)
	@if $(BIN)/python -c "import atheris" 2>/dev/null; then \
		$(BIN)/python -m tests.hostile.fuzz_requests --atheris --seconds $(FUZZ_SECONDS); fi

fuzz-api: build  ## Give the Python API odd objects, signals and threads for FUZZ_SECONDS (60); failures are kept in build/fuzz
	@$(BIN)/python -m tests.hostile.fuzz_api --seconds $(FUZZ_SECONDS) $(ARGS)

sanitize: build  ## Run both fuzzers, SANITIZE_SECONDS (60) each, and all tests without a JVM under ASAN and UBSAN (ARGS go to pytest)
	@$(BIN)/python -m tools.sanitize --seconds $(SANITIZE_SECONDS) $(ARGS)

sanitize-core: build  ## Run the share of `make sanitize` that CI runs: the fuzzer of the Python API and the tests of the Cython core
	@$(BIN)/python -m tools.sanitize --core --seconds $(SANITIZE_SECONDS) $(ARGS)

test-portable: build  ## Build without what only Linux has, as for macOS, and run the tests of the network (ARGS go to pytest)
	@$(BIN)/python -m tools.portable $(ARGS)

lint: build  ## Check style, types, Cython's lint and hints, the workflows, imports, names, and the map of folders
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@PATH="$(abspath $(BIN)):$$PATH" cython-lint kafkabuf  # it looks for pycodestyle on the PATH
	@$(BIN)/zizmor --offline --quiet .github
	@$(BIN)/python -m tools.check_imports
	@$(BIN)/python -m tools.check_cython
	@$(BIN)/python -m tools.file_map --check
	@$(BIN)/python -m tools.check_names

format: build  ## Let ruff put the Python files in order
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: $(VENV)/.docs build/docs/mermaid.min.js  ## Build the docs site into build/site; any warning fails it (needs npm)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)

docs-check: $(VENV)/.docs  ## Build the docs site without the script that draws its diagrams, which needs npm
	@NO_MKDOCS_2_WARNING=1 KAFKABUF_DOCS_WITHOUT_MERMAID=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)

bench: java $(VENV)/.bench  ## Measure every claim, peers beside us, real Apache Kafka; one of them: bench-send ... (ARGS go to it)
	@$(BIN)/python -m bench all $(ARGS)

bench-spool: $(VENV)/.bench  ## Measure what the buffer's file costs, beside other stores that outlive a process (ARGS: --rounds 1 --scale 0.05)
	@$(BIN)/python -m bench all --only spool $(ARGS)

bench-%: java $(VENV)/.bench
	@$(BIN)/python -m bench $* $(ARGS)

bench-gate: build  ## Fail where a kernel executes more instructions than bench/baseline.json says (needs valgrind)
	@$(BIN)/python -m bench.gate

bench-accept: build  ## Make what the kernels execute now the baseline, and show what changed (needs valgrind)
	@$(BIN)/python -m bench.gate --accept

wheel:  ## Build, check and try a wheel for each CPython that is found, into dist/ (ARGS: --here, --only 3.13, --once)
	@$(ANY_PYTHON) -m tools.wheel $(ARGS)

sdist:  ## Pack the sdist into dist/
	@$(ANY_PYTHON) -m tools.wheel --sdist

$(RELEASE)/.installed: requirements/tools.lock
	@$(ANY_PYTHON) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

wheels: $(RELEASE)/.installed  ## Build and try the wheels of this platform with cibuildwheel, as releases do (needs Docker)
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(RELEASE)/bin/cibuildwheel --output-dir dist $(ARGS)

sbom: $(RELEASE)/.installed  ## List the packages that a wheel in WHEELS (dist) brings along, in build/sbom/kafkabuf.cdx.json
	@$(ANY_PYTHON) -m venv --clear build/sbom/environment
	@build/sbom/environment/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
		--find-links $(WHEELS) kafkabuf==$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
	@$(RELEASE)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file build/sbom/kafkabuf.cdx.json build/sbom/environment

# Locked under the oldest Python supported: what it resolves to has wheels for the newer ones, and every wheel's hash.
lock:  ## Write the lock files anew from pyproject.toml and tools/lock.sh
	@tools/lock.sh

clean:  ## Remove everything that was made in the tree
	rm -rf $(VENV) build dist kafkabuf.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -rf spark-warehouse metastore_db derby.log
	find kafkabuf \( -name '*.so' -o -name '*.c' -o -name '*.html' \) -delete
	find kafkabuf pyspark_kafkabuf rigs tests tools bench -name __pycache__ -prune -exec rm -rf {} +
