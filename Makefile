# make demo: set-up, then the known-truth audit.   make test: set-up, lints, types, every test.
# make bench: speed, memory, coverage, measured.  make lock: resolve requirements.lock anew.
# make wheel: a wheel for others, in dist/.

SHELL := /bin/bash
PYTHON ?= python3
export PYTHON

UV := .ci/uv
STEP := .ci/step
BIN := .venv/bin
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name 'Cargo.toml' -o -name '*.c')
export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/.uv/bin:$(PATH)

.PHONY: demo test bench setup tools lint types rust-checks python-tests lock wheel clean
.NOTPARALLEL:
export PYTHONDONTWRITEBYTECODE := # torch and vLLM take minutes to start without compiled files

demo: setup
	@$(STEP) "Known-truth audit: mia-batch demo" $(BIN)/mia-batch demo

test: setup lint types rust-checks python-tests

bench: setup
	@[ -f demo/demo.json ] || $(STEP) "The demo's model" $(BIN)/mia-batch demo
	@$(STEP) "Speed beside bare vLLM and transformers" python -m benches.sampling
	@$(STEP) "Scoring beside bare transformers and vLLM" python -m benches.logprobs
	@$(STEP) "Memory and time of whole audits" python -m benches.memory
	@$(STEP) "Kernels beside others of their kind" python -m benches.kernels
	@$(STEP) "Samples to features beside the kernels alone" python -m benches.features
	@$(STEP) "Coverage of intervals" python -m benches.interval_coverage
	@$(STEP) "Calibration of p-values and estimates" python -m benches.p_value_calibration
	@$(STEP) "Coverage of the blind baseline's limits" python -m benches.blind

setup: tools .venv/.built

tools:
	@.ci/tools

.venv/.synced: requirements.lock .ci/uv
	@[ -x $(BIN)/python ] || $(STEP) "Environment" $(UV) venv --quiet --clear --python $(PYTHON) .venv
	@$(STEP) "Packages, from requirements.lock" $(UV) pip sync --quiet --require-hashes requirements.lock
	@touch $@

.venv/.built: .venv/.synced Cargo.toml Cargo.lock pyproject.toml $(RUST_SOURCES)
	@$(STEP) "Rust extension, release mode" $(UV) pip install --quiet --no-deps --no-build-isolation --reinstall --editable .
	@touch $@

lint:
	@$(STEP) "Format and lint: ruff" bash -c 'ruff format --check . && ruff check .'
	@$(STEP) "Docstrings: pydoclint" pydoclint --quiet python/mia_batch
	@$(STEP) "Import contract: lint-imports" lint-imports

types:
	@$(STEP) "Types: mypy" mypy
	@$(STEP) "Type stub against the binary: stubtest" python -m mypy.stubtest --mypy-config-file .ci/stubtest.ini mia_batch._native

rust-checks:
	@$(STEP) "Rust format" cargo fmt --all -- --check
	@$(STEP) "Rust lints: clippy" cargo clippy --quiet --workspace --all-targets --all-features --locked -- -D warnings
	@$(STEP) "Rust tests" cargo test --quiet --workspace --release --locked
	@$(STEP) "Rust documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --locked

python-tests:
	@$(STEP) "Tests: pytest" pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations=15

lock:
	$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate \
		--override requirements.override --python-version 3.11 \
		pyproject.toml --extra demo --extra openai --group dev -o requirements.lock

wheel: setup
	$(BIN)/maturin build --profile dist --locked --out dist

clean:
	rm -rf .venv .uv target dist demo
