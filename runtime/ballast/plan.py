"""`ballast plan`: which tensor goes where, what everything takes, and whether that is there. Nothing is loaded.

On the CPU weights are packed while they are loaded, and counted as they are then: K-quants take up to 4 % more than in
the file, and W_UK of the joint layout becomes floats. The embedding is read in place from the mapped file, through
page cache.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from ballast._core import numa
from ballast.config import Config, ModelConfig
from ballast.errors import OutOfMemoryError
from ballast.machine import Memory, read_machine
from ballast.model.isa import chosen_isa
from ballast.model.kv_pool import num_kv_blocks
from ballast.model.metadata import read_config, read_spec
from ballast.model.modules import module_of, module_tree
from ballast.model.packed_size import loaded_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import GROUPS, Group, check_tensors, expected_tensors, group_of
from ballast.moe.placement import Assignment, Rule, assign, read_rules
from ballast.numa import plan_threads
from ballast.tiny import BUILT_IN
from ballast.weights.gguf import GgufModel, open_gguf

_FLOAT_BYTES = 4
_PROGRAM_BYTES = 320 << 20
"""An allowance for Python, the libraries and a vocabulary of 130,000 tokens."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The settings that memory depends on."""

    cache_lens: int
    block_tokens: int
    max_batch_size: int
    chunk_size: int
    prefill_chunk_size: int
    isa: str = "reference"
    threads_per_node: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class WeightRow:
    """Tensors of one group, device and type."""

    group: Group
    device: str
    ggml_type: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One use of memory. `detail` says what it follows from."""

    name: str
    num_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Everything that a model, served with some settings, will take."""

    model: str
    files: tuple[str, ...]
    weights: tuple[WeightRow, ...]
    uses: tuple[MemoryRow, ...]
    memory: Memory
    assignment: Assignment
    max_cache_lens: int
    """The largest cache_lens that fits beside everything else; 0 when not even that does."""

    @property
    def needed_bytes(self) -> int:
        return sum(use.num_bytes for use in self.uses)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory.available_bytes


def make_plan(gguf: GgufModel, spec: ModelSpec, assignment: Assignment, numbers: Numbers, memory: Memory) -> MemoryPlan:
    """What `gguf`, a checked model, takes under `numbers` on a machine with `memory`. Pure."""
    weights = tuple(_weight_rows(gguf, spec, assignment, numbers))
    kv_row_bytes = spec.latent_dim * _FLOAT_BYTES * spec.num_layers
    num_slots = (num_kv_blocks(numbers.cache_lens, numbers.block_tokens) + 1) * numbers.block_tokens
    uses = (
        MemoryRow("weights", sum(row.num_bytes for row in weights), "packed while loading; embedding in page cache"),
        MemoryRow(
            "KV cache",
            num_slots * kv_row_bytes,
            f"{num_slots - numbers.block_tokens} tokens and the null block, {_human(kv_row_bytes)} a token",
        ),
        MemoryRow("work buffers", _work_bytes(spec, numbers), f"a step of {_step_tokens(numbers)} tokens, at most"),
        MemoryRow("tables", _table_bytes(spec, num_slots - numbers.block_tokens), "positions and norms"),
        MemoryRow("program", _PROGRAM_BYTES, "Python, libraries, vocabulary; an allowance"),
    )
    without_cache = sum(use.num_bytes for use in uses) - num_slots * kv_row_bytes
    num_blocks = (memory.available_bytes - without_cache) // (kv_row_bytes * numbers.block_tokens) - 1
    return MemoryPlan(
        model=spec.name,
        files=tuple(map(str, gguf.files)),
        weights=weights,
        uses=uses,
        memory=memory,
        assignment=assignment,
        max_cache_lens=max(0, num_blocks * numbers.block_tokens),
    )


def plan_for(config: Config, gguf: GgufModel, spec: ModelSpec) -> MemoryPlan:
    """The plan of a resolved configuration on this machine. Raises ConfigError for rules that cannot be followed."""
    scheduling, rules_path = config.scheduling, config.model.optimize_config_path
    rules: tuple[Rule, ...] = () if rules_path is None else read_rules(rules_path)
    numbers = Numbers(
        cache_lens=scheduling.cache_lens,
        block_tokens=scheduling.block_tokens,
        max_batch_size=scheduling.max_batch_size,
        chunk_size=scheduling.chunk_size,
        prefill_chunk_size=scheduling.prefill_chunk_size or scheduling.chunk_size,
        isa=chosen_isa(),
        threads_per_node=_threads_per_node(config),
    )
    assignment = assign(module_tree(spec), rules, source=rules_path)
    return make_plan(gguf, spec, assignment, numbers, read_machine().memory)


def _threads_per_node(config: Config) -> tuple[int, ...]:
    num_threads = config.machine.cpu_threads or 1
    placement = plan_threads(numa.read_topology(), num_threads, config.machine.numa).placement
    return (num_threads,) if placement is None else tuple(len(node.cpus) for node in placement.nodes)


def check_memory(plan: MemoryPlan) -> None:
    """Raises OutOfMemoryError with the numbers when the plan needs more than there is."""
    if plan.fits:
        return
    parts = ", ".join(f"{use.name} {_human(use.num_bytes)}" for use in plan.uses)
    way_out = (
        f"the largest cache_lens that fits is {plan.max_cache_lens}"
        if plan.max_cache_lens
        else "lower chunk_size, or take a machine with more memory or a model with fewer bytes per weight"
    )
    raise OutOfMemoryError(
        f"{plan.model} needs {_human(plan.needed_bytes)} ({parts}), available are "
        f"{_human(plan.memory.available_bytes)}{_limit(plan.memory)}; {way_out}"
    )


def run(config: Config, *, as_json: bool = False, out: TextIO | None = None) -> int:
    """Print the plan of a resolved configuration; 0 when it fits. Raises as `plan_for` and `check_memory` do, and
    ModelError; the plan is printed before it is refused."""
    gguf = open_model(config.model)
    model_path = config.model.model_path
    spec = read_spec(gguf, None if model_path is None else read_config(model_path))
    check_tensors(gguf, spec)
    plan = plan_for(config, gguf, spec)
    (out or sys.stdout).write(json.dumps(to_json(plan), indent=2) + "\n" if as_json else render(plan))
    check_memory(plan)
    return 0


def open_model(config: ModelConfig) -> GgufModel:
    """The model that the options name, or the built-in one. Raises ModelError."""
    return open_gguf(config.gguf_path or BUILT_IN.gguf)


def render(plan: MemoryPlan) -> str:
    """The plan for people."""
    lines = [plan.model, *(f"  {file}" for file in plan.files), "", "Weights"]
    lines += _table(
        ("group", "device", "type", "tensors", "bytes"),
        [(row.group, row.device, row.ggml_type, str(row.num_tensors), _human(row.num_bytes)) for row in plan.weights],
        right=(3, 4),
    )
    lines += ["", "Memory"]
    memory = [(use.name, _human(use.num_bytes), use.detail) for use in plan.uses]
    memory.append(("needed", _human(plan.needed_bytes), ""))
    available = _limit(plan.memory).lstrip(", ")
    memory.append(("available", _human(plan.memory.available_bytes), available or "of the machine's memory"))
    lines += _table(("use", "bytes", ""), memory, right=(1,))
    if plan.assignment.rules:
        lines += ["", "Rules", *(f"  {line}" for line in rule_lines(plan.assignment))]
    lines += ["", "It fits." if plan.fits else "It does not fit."]
    return "\n".join(lines) + "\n"


def rule_lines(assignment: Assignment) -> list[str]:
    """What each placement rule did, then the notes, one line each: for the plan and for the log."""
    lines = []
    for report in assignment.rules:
        others = ", ".join(map(str, report.hidden_by))
        if report.shadowed:
            effect = f"shadowed: everything it matches went to rule {others}"
        else:
            count = "1 module" if len(report.modules) == 1 else f"{len(report.modules)} modules"
            effect = f"{count}, {report.modules[0] or 'the whole model'} the first"
            effect += f"; others it matches went to rule {others}" if others else ""
        lines.append(f"rule {report.rule.index} ({report.rule.match}): {effect}")
    return [*lines, *assignment.notes]


def to_json(plan: MemoryPlan) -> dict[str, Any]:
    """The plan for programs; sizes in bytes."""
    return {
        "model": plan.model,
        "files": list(plan.files),
        "weights": [
            {
                "group": row.group,
                "device": row.device,
                "type": row.ggml_type,
                "num_tensors": row.num_tensors,
                "bytes": row.num_bytes,
            }
            for row in plan.weights
        ],
        "memory": {use.name.replace(" ", "_").lower(): use.num_bytes for use in plan.uses},
        "needed_bytes": plan.needed_bytes,
        "available_bytes": plan.memory.available_bytes,
        "limited_by": plan.memory.limited_by,
        "fits": plan.fits,
        "max_cache_lens": plan.max_cache_lens,
        "rules": [
            {
                "index": report.rule.index,
                "match": report.rule.match,
                "modules": list(report.modules),
                "shadowed": report.shadowed,
                "hidden_by": list(report.hidden_by),
            }
            for report in plan.assignment.rules
        ],
        "notes": list(plan.assignment.notes),
    }


def _weight_rows(gguf: GgufModel, spec: ModelSpec, assignment: Assignment, numbers: Numbers) -> Iterator[WeightRow]:
    tensors: Counter[tuple[Group, str, str]] = Counter()
    sizes: Counter[tuple[Group, str, str]] = Counter()
    for name, num_bytes in loaded_bytes(gguf, spec, numbers.isa, numbers.threads_per_node).items():
        key = (group_of(name), assignment.devices[module_of(name)], gguf.tensors[name].ggml_type.name)
        tensors[key] += 1
        sizes[key] += num_bytes
    for key in sorted(tensors, key=lambda key: (GROUPS.index(key[0]), *key)):
        yield WeightRow(*key, tensors[key], sizes[key])


def _step_tokens(numbers: Numbers) -> int:
    return max(numbers.chunk_size, numbers.prefill_chunk_size)


def _work_bytes(spec: ModelSpec, numbers: Numbers) -> int:
    """Activations alive at once in the widest part of a layer, and the logits of a full batch."""
    head = spec.nope_dim + spec.rope_dim
    query = head + spec.nope_dim + spec.rope_dim + spec.kv_lora_rank + spec.latent_dim
    attention = spec.latent_dim + spec.num_heads * (query + spec.kv_lora_rank + spec.v_dim)
    shared = 2 * spec.expert_dim * spec.num_shared_experts
    experts = spec.num_experts + spec.num_experts_used * spec.expert_dim + shared
    widest = max(attention, 2 * spec.ffn_dim, experts)
    logits = numbers.max_batch_size * spec.vocab_size
    return (_step_tokens(numbers) * (4 * spec.hidden + widest) + 4 * logits) * _FLOAT_BYTES


def _table_bytes(spec: ModelSpec, num_cached_tokens: int) -> int:
    positions = min(spec.context_length, num_cached_tokens) * spec.rope_dim
    norms = sum(shape[0] for shape in expected_tensors(spec).values() if len(shape) == 1)
    return (positions + norms) * _FLOAT_BYTES


def _limit(memory: Memory) -> str:
    return "" if memory.limited_by is None else f", the limit of cgroup {memory.limited_by}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Aligned columns, indented; those in `right` end together."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def _human(num_bytes: int) -> str:
    """Binary units, three digits or so."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95 or unit == "TiB":
            break
    return f"{size:.1f} {unit}"
