# Everything on a fresh machine: `make demo` shows the writer at work, `make test` passes the tests.
# Needs Python 3.11 or newer and a JDK 17; nothing else. A second run is fast.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SITE := $(VENV)-docs
RELEASE := $(VENV)-release
SHELL := bash
# Without compiled bytecode every process of a test would compile the product, and pytest rewrite each assertion, again.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait for servers more than they compute. Each worker has a broker and a registry of its own; how many a machine
# takes, tests/support/workers.py says: four on two cores.
WAITING := -n auto --dist worksteal
THREE := -n 3 --dist worksteal
SLOW := "slow and not long and not engines"
STORES := $(addprefix tests/contract/test_,storage_adapters.py table_formats.py table_starts.py parquet.py faulty_s3.py demo_lakes.py) $(addprefix tests/spark/test_,s3_run.py demo_lakes.py)
EMULATORS := HEADRACE_TEST_S3=minio HEADRACE_TEST_GCS=fake-gcs HEADRACE_TEST_AZURE=azurite HEADRACE_TEST_RACES=100
CLOUDS := $(addprefix tests/contract/test_,storage_adapters.py table_formats.py table_starts.py parquet.py cloud_kills.py demo_lakes.py) $(addprefix tests/spark/test_,cloud_run.py demo_lakes.py)

.PHONY: demo demo-picture page-picture scaling-picture test test-long check slow record test-engines test-lake test-orchestrators test-chart test-deploy test-rollout test-page test-stores test-logins test-versions images release guard setup reference docs lock clean

demo: $(READY)
	$(BIN)/headrace demo

test: check slow

# Four minutes: format, lint, layers, types, and the tests that need no server. Types are checked beside the
# tests, which do not keep two cores busy: without its cache mypy takes a quarter of a minute.
check: $(READY)
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/lint-imports --no-cache
	@echo "$(BIN)/mypy, beside the tests"; $(BIN)/mypy & types=$$!; \
		$(BIN)/pytest -q -m "not slow and not long" $(THREE); tests=$$?; \
		wait $$types || { echo "check: mypy failed; what it found stands above" >&2; exit 1; }; exit $$tests

# Real broker, registry, Spark and table: contract and crash tests.
slow: $(READY)
	@$(BIN)/python -m tests.servers.network_hosts
	$(BIN)/python -m tests.support.class_archive
	$(BIN)/pytest -q -m $(SLOW) $(WAITING) --durations 10

# Seconds of each slow test for tests/seconds.json, on a quiet machine: all of them, or those of ONLY (tests/BUDGET.md).
record: $(READY)
	$(BIN)/pytest -q -m $(SLOW) $(THREE) --store-durations --durations-path tests/seconds.json $(ONLY)

# What real engines, a real Kubernetes, a real browser and other stores make of it. What a part lacks, it says.
test-engines: test-lake test-orchestrators test-chart test-deploy test-rollout test-page test-stores test-logins

# Trino, Presto, Druid, Spark and DuckDB on a lake that the writer fills: 3.5 GB of downloads and 2.3 GB on disk, once.
test-lake: $(READY)
	$(BIN)/python -m tests.servers.parts
	$(BIN)/pytest -q -m "engines and not long" --durations 12 $(addprefix tests/engines/test_,cloud_lakes.py dbt.py end_to_end.py freshness.py hooks.py iceberg_catalogs.py iceberg_commits.py iceberg_engines.py iceberg_faults.py iceberg_logins.py iceberg_postgres.py iceberg_rest.py iceberg_spark.py partition_names.py queries.py route.py)

# The hooks on Airflow and Dagster, with SQLite: environments of their own, from PyPI.
test-orchestrators: $(READY)
	$(BIN)/pytest -q -m engines --durations 12 tests/contract/test_orchestrator_hooks.py tests/engines/test_orchestrator_examples.py

# The chart on a real Kubernetes API, and what platform teams paste. Go 1.24 builds helm, etcd and Kubernetes, once, in 20
# minutes on two cores; Go 1.26 what the examples are held against, in five.
test-chart: $(READY)
	@if command -v go >/dev/null; then PYTHON=$(BIN)/python bash tests/engines/kubernetes.sh && \
		$(BIN)/pytest -q -m engines tests/engines/test_chart.py tests/contract/test_lease.py; \
	else echo "NOT RUN: test-chart, on a real Kubernetes API, for want of Go"; fi

# The examples of docs/examples/kubernetes there, by the definitions of Argo CD, Flux and Terraform's provider.
test-deploy: $(READY)
	@if command -v go >/dev/null; then PYTHON=$(BIN)/python bash tests/engines/kubernetes.sh && \
		PYTHON=$(BIN)/python bash tests/engines/deploy_tools.sh && \
		$(BIN)/pytest -q -m engines tests/engines/test_deploy_examples.py; \
	else echo "NOT RUN: test-deploy, the examples for Argo CD, Flux and Terraform, for want of Go"; fi

# Releases that run there, without an image: a quarter of an hour, most of it for upgrades that must fail.
test-rollout: $(READY)
	@if command -v go >/dev/null && [ "$$(id -u)" = 0 ]; then PYTHON=$(BIN)/python bash tests/engines/kubernetes.sh && \
		$(BIN)/pytest -q --durations 8 tests/engines/test_rollout.py; \
	else echo "NOT RUN: test-rollout, releases that run, which need Go, and root for mounts: sudo make test-rollout"; fi

test-page: $(READY)
	@if command -v chromium >/dev/null || [ -n "$$HEADRACE_CHROMIUM" ]; then $(BIN)/pytest -q tests/engines/test_driver_page.py tests/engines/test_fleet_page.py tests/engines/test_page_states.py; \
	else echo "NOT RUN: test-page, the driver's page, for want of Chromium (apt-get install chromium)"; fi

# The suites of stores and tables on MinIO, which Go builds, and on SeaweedFS of PyPI, which makes missing buckets
# itself; a store from npm that must be refused, and the page of the compose example up to Trino's answer. The servers
# that play Google Cloud Storage and Azure, against fake-gcs-server of Go and Azurite of npm.
test-stores: $(READY)
	@if command -v go >/dev/null && command -v npm >/dev/null; then bash tests/engines/fetch.sh && \
		HEADRACE_TEST_S3=minio $(BIN)/pytest -q -k s3 $(STORES) && \
		HEADRACE_TEST_S3=seaweedfs $(BIN)/pytest -q -k "s3 and not no_bucket and not missing_bucket" $(addprefix tests/contract/test_,storage_adapters.py table_formats.py) && \
		HEADRACE_TEST_S3=minio $(BIN)/pytest -q tests/engines/test_object_stores.py tests/engines/test_cloud_roles.py tests/engines/test_compose_example.py && \
		$(EMULATORS) $(BIN)/pytest -q tests/engines/test_file_memory.py tests/engines/test_versioned_buckets.py && \
		$(EMULATORS) $(BIN)/pytest -q $(addprefix tests/contract/test_cloud_,servers.py data_files.py races.py) tests/contract/test_faulty_clouds.py && \
		$(EMULATORS) $(BIN)/pytest -q -k "(gs or az) and not s3 and not local" $(CLOUDS); \
	else echo "NOT RUN: test-stores, on MinIO, s3rver, fake-gcs-server and Azurite, for want of Go or npm; servers in Python played them"; fi

# Kerberos with a KDC of its own, Spark's client of Kafka with the logins of Kerberos and MSK, whole writers with both, which
# are killed and refused, and servers of tokens, tickets and credentials that are down for a minute. It took 23 minutes on two
# cores that other work shared.
test-logins: $(READY)
	$(BIN)/pytest -q --durations 8 -k "not kerberos" $(addprefix tests/engines/test_,kafka_msk_iam.py login_runs.py token_outage.py)
	@if PATH="$$PATH:/usr/sbin:/sbin" type krb5kdc kadmin.local ktutil >/dev/null 2>&1; then \
		$(BIN)/pytest -q --durations 8 -k kerberos $(addprefix tests/engines/test_,kafka_kerberos.py login_runs.py token_outage.py); \
	else echo "NOT RUN: test-logins, the login by Kerberos, for want of krb5-kdc (apt-get install krb5-kdc krb5-admin-server krb5-user)"; fi

# Other versions of Spark, Java and Python: demo, crash tests, damaged checkpoints, bench (tests/versions). ONLY names some
# combinations; TURN=2026-11-27 runs demo and two crash tests on the one whose turn that day is, and records nothing.
test-versions: $(READY)
	$(BIN)/python -m tests.versions.run $(if $(TURN),--turn $(TURN),$(ONLY))
	$(if $(TURN),,PYTHONPATH=. $(BIN)/python docs/versions.py)

# Both images, with docker or buildah, and what they promise (docker/prove.sh).
images:
	bash docker/build.sh

# What VERSION publishes, built, proven and described in dist/VERSION (docs/RELEASE.md): `make release VERSION=0.1.0`.
# YES=1 writes the tag, and replaces files that are there; IMAGES=no leaves the images out, and says so in the notes.
IMAGES ?= yes
release: $(READY) $(RELEASE)/.ready
	@[ -n "$(VERSION)" ] || { echo "release: which version? Say it: make release VERSION=0.1.0" >&2; exit 2; }
	@$(RELEASE)/bin/python -m release $(VERSION) --images $(IMAGES) $(if $(filter 1,$(YES)),--yes)

$(RELEASE)/.ready: release/release.lock
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $<
	touch $@

# The whole matrix of faults, long runs and a thousand examples of each property, recorded for tests/fault/REPORT.md:
# about three hours, or in shards of one product, e.g. `make test-long SHARD=2 SHARDS=4`. READER=spark plays the faults
# of Kafka, checkpoints and processes once more with Spark's Kafka source. LOGIN=oauth plays them with writers that log in
# to Kafka by tokens of ten seconds; what it finds lies in build/, and no page is made of it.
SHARD ?= 1
SHARDS ?= 1
READER ?= native
LOGIN ?= none
PRODUCT := autoscaler bench bucketers recovery writer requirements.lock
OUTCOMES := outcomes$(if $(filter spark,$(READER)),_spark)
RECORDED := $(if $(filter none,$(LOGIN)),tests/fault/$(OUTCOMES),build/$(OUTCOMES)_$(LOGIN)).json
LONG := $(if $(filter spark oauth,$(READER) $(LOGIN)),tests/fault --ignore tests/fault/test_storage.py)
test-long: export HEADRACE_OUTCOMES := $(CURDIR)/$(RECORDED)
test-long: export HEADRACE_COMMIT = $(shell git rev-parse HEAD)
test-long: export HEADRACE_PRODUCT = $(shell git ls-tree HEAD $(PRODUCT) | git hash-object --stdin)
test-long: export HEADRACE_TEST_READER = $(READER)
test-long: export HEADRACE_TEST_LOGIN = $(LOGIN)
test-long: $(READY)
	@[ -z "$$(git status --porcelain -- . ':!tests/fault/outcomes*.json')" ] || \
		{ echo "test-long: outcomes carry a commit, and this tree differs from it: commit or stash first" >&2; exit 1; }
	@$(BIN)/python -m tests.servers.network_hosts
	@mkdir -p $(dir $(RECORDED))
	$(BIN)/python -m tests.support.class_archive
	$(BIN)/python -m tests.fault.outcomes begin
	$(BIN)/pytest -q -m sharded --hypothesis-profile long $(THREE) --durations 10 $(LONG) \
		--splits $(SHARDS) --group $(SHARD) --durations-path tests/seconds.json
	$(BIN)/python -m tests.fault.outcomes passed $(SHARD)/$(SHARDS)

# Two minutes: fails when the writer lost more than 15 % of its speed (bench/README.md).
guard: $(READY)
	$(BIN)/python -m headrace.bench.guard

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash ./setup.sh

# For maintainers: resolve the dependencies again.
lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header -q -o requirements.lock

# REFERENCE, METRICS, PACKAGES, SIZING, AUTOSCALING, RECOVERY and LICENSES of docs/, the features in TYPES, Grafana's dashboard and the chart's README, FAULTS and
# tests/fault/REPORT.md from recorded outcomes.
reference: $(READY)
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/metrics.py
	$(BIN)/python docs/packages.py
	$(BIN)/python docs/sizing.py
	$(BIN)/python docs/autoscaling.py
	$(BIN)/python docs/licenses.py
	PYTHONPATH=. $(BIN)/python docs/versions.py
	PYTHONPATH=. $(BIN)/python docs/features.py
	$(BIN)/python docs/dashboard.py
	$(BIN)/python docs/error_catalogue.py
	$(BIN)/python docs/chart.py
	PYTHONPATH=. $(BIN)/python docs/faults.py
	cp recovery/alerts.yaml helm/headrace/rules/alerts.yaml
	$(BIN)/python docker/locks.py

# The pages as a site in site/. A link or anchor that leads nowhere fails.
docs: $(SITE)/.ready
	$(SITE)/bin/python docs/site.py
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

$(SITE)/.ready: docs/site.lock
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $<
	touch $@

# docs/images/demo.svg from a run of the demo.
demo-picture: $(READY)
	$(BIN)/python docs/picture.py

# docs/images/page*.png from a real driver in headless Chromium (apt-get install chromium).
page-picture: $(READY)
	HEADRACE_PICTURES=$(CURDIR)/docs/images $(BIN)/pytest -q tests/engines/test_driver_page.py -k glance

# docs/images/scaling.png from a run on a cluster: some minutes.
scaling-picture: $(READY)
	HEADRACE_SCALING=$(CURDIR)/tests/spark/autoscaling.json $(BIN)/pytest -q tests/spark/test_autoscaling.py
	$(BIN)/python docs/scaling.py
	$(BIN)/python docs/autoscaling.py

clean:
	rm -rf $(VENV) $(SITE) $(RELEASE) site build .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
