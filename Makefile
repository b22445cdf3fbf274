# make demo: set-up, then the known-truth audit.   make test: set-up, lints, types, pages, every test.
# make real: an audit of a real model, SmolLM2, on public texts; in minutes, without a GPU.
# make pictures: the notebooks' outputs and the site's pictures, drawn anew.
# make test-long: the tests that take minutes each. make docs: the documentation, in site/, with every
# figure and generated table of it; make figures: these alone, in figures/.   make bench: speed, memory, coverage, power, measured.
# make lock: resolve requirements.lock anew.   make wheel: wheels for others, in dist/; make wheel-try: install and try them.
# make test-elsewhere: every test as on machines that differ from this one (.ci/elsewhere says how), before
# a release; make test-elsewhere-fast: tests of what is printed and counted, under all conditions at once.
# make test-arm: the kernels' tests as a program for 64-bit Arm, on an emulated processor. It is made of
# Debian's packages first, which takes minutes, so make test leaves it out.
# MIA_BATCH_ZLIB_TEXTS=5000000 cargo test --release --package mia-kernels --test zlib_size: zlib
# sizes of 5,000,000 texts instead of 200,000, in minutes.

SHELL := /bin/bash
PYTHON ?= python3
export PYTHON

UV := .ci/uv
STEP := .ci/step
BIN := .venv/bin
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name 'Cargo.toml')
export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/.uv/bin:$(PATH)

.PHONY: demo real test llama-cpp test-long test-elsewhere test-elsewhere-fast test-arm docs figures pictures bench setup tools chromium checks lint types rust-checks pages python-tests lock wheel wheel-try clean
ifneq ($(MAKECMDGOALS),checks)
.NOTPARALLEL:
endif
export PYTHONDONTWRITEBYTECODE := # torch and vLLM take minutes to start without compiled files

# Without Rust the demo runs from a wheel of this version, if there is one.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
WHEEL := $(wildcard dist/mia_batch-$(VERSION)-*$(shell uname -m).whl)
demo: $(if $(shell command -v cargo),setup,$(if $(WHEEL),.venv/.wheel,setup))
	@$(STEP) "Known-truth audit: mia-batch demo" $(BIN)/mia-batch demo

real: setup llama-cpp
	@$(STEP) "A real model: SmolLM2, on public texts" python -m benches.real audit

test: setup chromium llama-cpp
	@$(MAKE) --no-print-directory --jobs=3 checks

# The longest first. Tests often wait for a process to start or to end; lints and types use that time.
checks: python-tests lint types rust-checks pages

docs: setup
	@$(MAKE) --no-print-directory pages

pictures: setup chromium
	@$(STEP) "Notebooks, run anew" python -m docs.generate.notebooks
	@$(STEP) "Pictures of the landing page and the gallery" env MIA_BATCH_JOURNAL=off python -m docs.generate.pictures

figures: setup
	@$(STEP) "Figures and generated tables of the documentation, in figures/" python -m docs.generate figures

bench: setup llama-cpp
	@[ -f demo/demo.json ] || $(STEP) "The demo's model" $(BIN)/mia-batch demo
	@python -m benches run

setup: tools .venv/.built

tools:
	@.ci/tools

llama-cpp: .venv/.llama-cpp

.venv/.llama-cpp: .venv/.synced requirements.llama-cpp.lock
	@$(STEP) "llama.cpp and a real model, for the tests of GGUF files; compiled at the first time" .ci/llama-cpp
	@touch $@

chromium:
	@command -v chromium >/dev/null || $(STEP) "Debian's Chromium, for the tests of the report" .ci/chromium

.venv/.synced: requirements.lock .ci/uv
	@[ -x $(BIN)/python ] || $(STEP) "Environment" $(UV) venv --quiet --clear --python $(PYTHON) .venv
	@$(STEP) "Packages, from requirements.lock" $(UV) pip sync --quiet --require-hashes requirements.lock
	@touch $@

.venv/.built: .venv/.synced Cargo.toml Cargo.lock pyproject.toml $(RUST_SOURCES)
	@$(STEP) "Rust extension, release mode" $(UV) pip install --quiet --no-deps --no-build-isolation --reinstall --editable .
	@touch $@

.venv/.wheel: .venv/.synced $(WHEEL)
	@$(STEP) "There is no cargo: mia-batch as it was when $(WHEEL) was made" \
		$(UV) pip install --quiet --no-deps --reinstall $(WHEEL)
	@rm -f .venv/.built
	@touch $@

lint:
	@$(STEP) --quiet "Format and lint: ruff" bash -c 'ruff format --check . && ruff check .'
	@$(STEP) --quiet "Names and density: .ci/words" .ci/words
	@$(STEP) --quiet "Docstrings: pydoclint" pydoclint --quiet python/mia_batch
	@$(STEP) --quiet "Import contract: lint-imports" lint-imports
	@$(STEP) --quiet "No circles within rooms: lint-imports" lint-imports --config .ci/circles.ini

types:
	@$(STEP) --quiet "Types: mypy" mypy
	@$(STEP) --quiet "Type stub against the binary: stubtest" python -m mypy.stubtest --mypy-config-file .ci/stubtest.ini mia_batch._native

rust-checks:
	@$(STEP) --quiet "Rust format" cargo fmt --all -- --check
	@$(STEP) --quiet "Rust lints: clippy" cargo clippy --quiet --workspace --all-targets --all-features --release --locked -- -D warnings
	@$(STEP) --quiet "Rust tests" cargo test --quiet --workspace --release --locked
	@$(STEP) --quiet "Rust documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --release --locked

# mkdocs warns of its own future, which is no warning of ours.
pages:
	@$(STEP) --quiet "Documentation: mkdocs" env NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict --quiet

# The workers take all cores, two more the time in which others wait for processes: further threads
# of each would spin against the others.
python-tests:
	@$(STEP) "Tests: pytest" env OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 RAYON_NUM_THREADS=1 \
		pytest --numprocesses $$(($$(nproc) + 2)) --maxprocesses 6 \
		--dist loadfile --no-loadscope-reorder --durations=15

# More kills, whole corpora and further clusters, of which make test runs one each.
test-long: setup chromium llama-cpp
	@$(STEP) "Long tests: pytest" env OMP_NUM_THREADS=1 pytest -m long --numprocesses $$(nproc) --dist worksteal --durations=15

test-elsewhere: setup chromium llama-cpp
	@for condition in narrow c-locale one-core old-vectors; do \
		$(STEP) "Tests elsewhere: $$condition" .ci/elsewhere $$condition \
			--numprocesses 2 --dist loadfile --no-loadscope-reorder || exit 1; \
	done

test-elsewhere-fast: setup
	@$(STEP) "Tests elsewhere, the fast ones" .ci/elsewhere all --quiet tests/unit/test_bench.py \
		tests/unit/cli/test_show.py tests/unit/cli/test_main.py tests/unit/report tests/unit/metrics \
		tests/unit/stats tests/unit/test_kernels.py tests/parity

test-arm: export RUSTC := $(CURDIR)/.arm/bin/rustc
test-arm: export RUSTFLAGS := -C target-feature=+crt-static -D warnings
test-arm: export CARGO_TARGET_DIR := $(CURDIR)/.arm/target
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := $(CURDIR)/.arm/bin/aarch64-linux-gnu-gcc
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := $(CURDIR)/.arm/usr/bin/qemu-aarch64-static
test-arm: export CC_aarch64_unknown_linux_gnu := $(CURDIR)/.arm/bin/aarch64-linux-gnu-gcc
test-arm: export AR_aarch64_unknown_linux_gnu := $(CURDIR)/.arm/bin/aarch64-linux-gnu-ar
test-arm: export MIA_BATCH_ZLIB_TEXTS := 20000
test-arm: .arm/bin/rustc
	@$(STEP) "Rust tests on 64-bit Arm" cargo test --quiet --release --locked \
		--target aarch64-unknown-linux-gnu --package mia-kernels --lib --tests

.arm/bin/rustc: .ci/arm/build .ci/debian.sh
	@$(STEP) "Compiler for 64-bit Arm and its emulator" .ci/arm/build .arm

lock:
	$(UV) pip compile --quiet --universal --no-deps --generate-hashes --no-emit-index-url --no-annotate \
		--python-version 3.11 requirements.llama-cpp.in -o requirements.llama-cpp.lock
	$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate \
		--override requirements.override --python-version 3.11 \
		pyproject.toml --extra addresses --extra demo --extra finetune --extra openai --extra privacy --extra ray --extra s3 --group dev -o requirements.lock

wheel: tools
	@$(STEP) "Wheels for Linux, x86-64 and 64-bit Arm" .ci/wheels build

wheel-try:
	@$(STEP) "The wheels in environments of their own, without Rust" .ci/wheels try

clean:
	rm -rf .venv .uv .arm target dist demo demo-of-tests-* figures site
