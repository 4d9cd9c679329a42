# Every command of the project, for people and for CI alike. `make help` lists them.
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin
SAN_BUILD := build/sanitize

.PHONY: help setup demo test test-cpp lint bench sanitize lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## make .venv, install the pinned dependencies, build the C++ part
	@.ci/setup
