# What a person does with this repository. `make help` lists it.

SHELL := /bin/sh
.SUFFIXES:
.PHONY: help build install deb demo test nightly long sim fuzz guest

# What guests boot, and what they boot under.
GUESTS := guest/build && guest/build newer && guest/build older-qemu && guest/build mpi

help: ## Say what there is
	@sed -n 's/^\([a-z]*\):.*## /    make \1\t/p' Makefile | expand -t 22

# Results name the commit.
BUILD := VRIO_COMMIT=$$(git describe --always --dirty 2>/dev/null) \
    cargo build --release --package vrio --package ofi
BUILT := $${CARGO_TARGET_DIR:-target}/release
DESTDIR ?=
PREFIX ?= /usr

build: ## Build the program, and the provider for MPI beside it
	@$(BUILD)

install: ## Install what was built, its units and manual; PREFIX=/usr DESTDIR= say where
	@packaging/install "$(BUILT)" "$(DESTDIR)" "$(PREFIX)"

deb: build ## Make a Debian package of it
	@packaging/deb "$(BUILT)" "$${CARGO_TARGET_DIR:-target}"

# Without the right to install what a guest needs, the demo uses a stand-in for the guest.
demo: ## Watch guests use a remote disk, a network and MPI while the node that serves is killed
	@scripts/install demo && guest/build && guest/build mpi || { [ $$? = 1 ] && without=--no-guest && \
	    echo "demo: no guest can be run, see above; a stand-in uses the disk instead"; } && \
	    $(BUILD) && \
	    VRIO_GUEST=guest/cache "$(BUILT)/vrio" demo $$without

test: ## Run all tests, real guests included (what CI runs)
	@from=$$(date +%s); scripts/install test && $(GUESTS) || [ $$? = 1 ] || exit 1; \
	    VRIO_PREPARED_S=$$(($$(date +%s) - from)) scripts/test

nightly: ## The same in release mode with many more seeds and kills
	@scripts/install test && $(GUESTS) && guest/build database && guest/build copies
	@scripts/test nightly

long: ## For hours
	@scripts/install test && $(GUESTS) && guest/build database && guest/build copies
	@scripts/test long

SEED ?=
sim: ## Run the simulation; SEED=n replays one run and prints it
	@SIM_SEED=$(SEED) cargo test --package simulation --test simulation -- --nocapture
	@SIM_SEED=$(SEED) cargo test --package net --test remote whole_nics -- --nocapture
	@STORE_SEED=$(SEED) cargo test --package store --test simulation -- --nocapture
	@REPLICA_SEED=$(SEED) cargo test --package replica --test protocol promises_hold -- --nocapture

TARGET ?= all
SECONDS ?=
fuzz: ## Fuzz; TARGET=name SECONDS=n for one target, SECONDS=0 for ever
	@scripts/install fuzz && scripts/fuzz $(TARGET) $(SECONDS)

guest: ## Build the test guest's images
	@scripts/install test && $(GUESTS) && guest/build database && guest/build copies
