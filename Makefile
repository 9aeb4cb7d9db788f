# Every target does its own set-up; nothing needs root. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SUITE := $(VENV)/suite
# One computing thread and one decoding worker: two of either on two cores would wait for each other.
LAUNCH := $(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
	--num_cpu_threads_per_process 1 --gpu_ids 0
# A test that hangs ends its worker after five minutes, with the stacks of all its threads, and counts as failed.
# Bytecode is kept, also where the environment forbids it: many tests start Python.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder \
	-o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
CORES = $(shell getconf _NPROCESSORS_ONLN)
# With these no library uses AVX-512; ATEN_CPU_CAPABILITY=default leaves PyTorch's own loops without AVX2 too.
PORTABLE := ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
DATA := data/miniature
TARGETS := $(DATA)/semantic_targets.safetensors
BACKBONE := recipes/miniature_backbone
BACKBONE_RUN := runs/miniature-backbone
RUN := runs/miniature
QUERIES := "a yellow ring that keeps vanishing on a banded brown ground" \
	"a high bell with crackling behind it" \
	"a green triangle, while Karin is talking about tigers"

.DEFAULT_GOAL := help
# A recipe that fails leaves no target that looks finished.
.DELETE_ON_ERROR:
.PHONY: help demo backbone study site test test-fast test-portable suite e2e-test check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch first and by its exact version, so that no other package chooses another
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev,docs]"
	@touch $@

$(DATA)/miniature.json: | $(INSTALLED)
	$(BIN)/python -m evidence miniature --output $(DATA) --num-train 1500 --num-validation 500 --num-test 1000

data/miniature-backbone/miniature.json: | $(INSTALLED)
	$(BIN)/python -m evidence miniature --output data/miniature-backbone --num-train 6000 --num-validation 0 \
		--num-test 0 --seed 100 --alone

$(TARGETS): | $(DATA)/miniature.json
	$(BIN)/python -m scalar_retrieval.trainer.semantic_targets --plugin evidence.miniature --benchmark miniature --root $(DATA) --output $@ \
		--encoder light

$(RUN)/adapter_model.safetensors: recipes/miniature.yaml $(BACKBONE)/model.safetensors | $(TARGETS)
	$(LAUNCH) train.py recipes/miniature.yaml --resume_from_checkpoint auto

$(RUN)/results/results.json: $(RUN)/adapter_model.safetensors
	$(BIN)/scalar eval run --model $(RUN) --plugin evidence.miniature --benchmark miniature --root $(DATA) \
		--output $(RUN)/results --rate 0 --rate 0.5 --depth 10 --depth 50 --fusion-split validation

$(RUN)/gallery/gallery.json: $(RUN)/adapter_model.safetensors
	rm -rf $(RUN)/gallery
	$(BIN)/scalar index $(DATA)/test --model $(RUN) --output $(RUN)/gallery

demo: $(RUN)/results/results.json $(RUN)/gallery/gallery.json ## from videos to a trained model to ranked answers
	@cat $(RUN)/results/report/tables.md
	@$(BIN)/scalar query $(RUN)/gallery -k 3 $(QUERIES)

runs/new-backbone/processor_config.json: | data/miniature-backbone/miniature.json
	$(BIN)/python -m evidence backbone --root data/miniature-backbone --output $(@D)

backbone: runs/new-backbone/processor_config.json ## train the small backbone again, half an hour
	$(LAUNCH) train.py recipes/miniature_backbone.yaml --resume_from_checkpoint auto
	$(LAUNCH) train.py recipes/miniature_backbone_matching.yaml --resume_from_checkpoint auto
	$(BIN)/python -m evidence halve $(BACKBONE_RUN)-matching $(BACKBONE) --before $(BACKBONE_RUN)

study: $(INSTALLED) ## tuning, training and the paper's tables in miniature, under four hours on two cores
	$(BIN)/python -m evidence study

site: $(INSTALLED) ## the documentation as a site, in site/
	$(BIN)/python -m tests.promises --write
	NO_MKDOCS_2_WARNING=1 PATH=$(abspath $(BIN)):$$PATH $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/: $(BIN)/python -m http.server --directory site"

test: $(INSTALLED) ## the default test suite, three and a half minutes on two cores
	OMP_NUM_THREADS=1 $(PYTEST) -n auto

test-fast: $(INSTALLED) ## without the tests that start Python again or train for long, two minutes
	OMP_NUM_THREADS=1 $(PYTEST) -n auto --fast -r fE

# Quantisers print and patch when they are merely installed: they lie in a folder of their own.
$(SUITE)/.installed: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(SUITE) \
		$$(grep -E '^(bitsandbytes|torchao|parameterized)==' constraints.txt)
	$(BIN)/python tests/transformers_suite/suite.py
	@touch $@

suite: $(SUITE)/.installed ## mixins of transformers' own test suite, and quantised weights, a minute
	OMP_NUM_THREADS=1 PYTHONPATH=$(SUITE) $(PYTEST) -m suite -n auto

e2e-test: $(INSTALLED) ## whole processes: training, publishing, kills, hostile files, three nodes, four and a half minutes
	OMP_NUM_THREADS=1 $(PYTEST) -n auto -m "e2e and not slow"

# Everything but publishing, which computes nothing. As many processes as cores, counting their threads.
test-portable: $(INSTALLED) ## as on machines without AVX-512 and AVX2, with one and two threads, half an hour
	@for capability in avx2 default; do for threads in 1 2; do \
		settings="ATEN_CPU_CAPABILITY=$$capability $(PORTABLE) OMP_NUM_THREADS=$$threads"; \
		echo "== $$settings"; \
		env $$settings $(PYTEST) -n $$(( ($(CORES) + threads - 1) / threads )) --ignore tests/hub_cards || \
			{ echo "error: the tests fail with $$settings" >&2; exit 1; }; \
	done; done

check: $(INSTALLED) ## lint, format and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos

clean: ## remove what the targets made, but not the environment
	rm -rf data runs
