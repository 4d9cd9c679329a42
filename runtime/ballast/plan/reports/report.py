"""Formats a memory plan for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ballast.config.options import Config
from ballast.host.machine import Memory
from ballast.host.sizes import human
from ballast.moe.device_rules import Placement
from ballast.plan.gpus.gpu_experts import share_is_estimated_by
from ballast.plan.lengths import Lengths
from ballast.plan.memory import DevicePlan, GpuPlan, MemoryPlan, Numbers
from ballast.plan.rows import MemoryRow


def render(plan: MemoryPlan, speed: Sequence[str] = (), missing: Sequence[str] = ()) -> str:
    """The plan for people. `speed`, `missing`: lines about the expected speed and about missing memory."""
    lines = [plan.model, *(f"  {file}" for file in plan.files), "", "Weights"]
    lines += _table(
        ("group", "device", "type", "tensors", "bytes"),
        [(row.group, row.device, row.ggml_type, str(row.num_tensors), human(row.num_bytes)) for row in plan.weights],
        right=(3, 4),
    )
    if plan.lengths is not None:
        lines += ["", "Lengths", *_length_lines(plan.lengths)]
    lines += ["", "Memory" if plan.gpus is None else "Memory of the host"]
    memory = [(use.name, human(use.num_bytes), use.detail) for use in plan.uses]
    memory.append(("needed", human(plan.needed_bytes), ""))
    available = _limit(plan.memory).lstrip(", ")
    memory.append(("available", human(plan.memory.available_bytes), available or "of the machine's memory"))
    lines += _table(("use", "bytes", ""), memory, right=(1,))
    for device in plan.devices:
        own = f", which computes {_layers_text(device.layers)}" if len(plan.devices) > 1 else ""
        lines += ["", f"Memory of {device.memory.name}{own}", *_device_lines(device, _cache_limit(plan, device))]
    if plan.gpus is not None:
        lines += ["", *_dense_lines(plan.gpus), "", "Long steps", *_long_step_lines(plan.numbers, plan.gpus)]
        if plan.gpus.pcie_share:
            lines += ["", "Decode steps", *_pcie_lines(plan.numbers, plan.gpus)]
    if plan.placement.rules:
        lines += ["", "Rules", *(f"  {line}" for line in rule_lines(plan.placement))]
    if speed:
        lines += ["", "Expected speed", *speed]
    lines += ["", "It fits." if plan.fits else " ".join(["It does not fit.", *missing])]
    return "\n".join(lines) + "\n"


def _cache_limit(plan: MemoryPlan, device: DevicePlan) -> str:
    """The largest cache_lens for a device, and which device limits it."""
    assert plan.gpus is not None
    limiter, most = plan.gpus.cache_limiter, device.max_cache_lens
    if len(plan.devices) == 1:
        return f"the largest cache_lens is {most}"
    if most == limiter.max_cache_lens:  # several GPUs may have the same room
        return f"limits cache_lens to {most}: no GPU has less room"
    return f"has room for cache_lens = {most}, but {limiter.memory.name} has not"


def _device_lines(device: DevicePlan, cache_limit: str) -> list[str]:
    memory = [(use.name, human(use.num_bytes), use.detail) for use in device.uses]
    memory.append(("needed", human(device.needed_bytes), cache_limit))
    memory.append(("available", human(device.memory.available_bytes), device.memory.limited_by))
    return _table(("use", "bytes", ""), memory, right=(1,))


def _length_lines(lengths: Lengths) -> list[str]:
    rows = [
        (name, str(number), lengths.derived.get(name, "as given"))
        for name, number in (("max_new_tokens", lengths.max_new_tokens), ("cache_lens", lengths.cache_lens))
    ]
    return _table(("option", "tokens", ""), rows, right=(1,))


def _layers_text(layers: range) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def device_line(config: Config) -> str:
    """The device of a resolved configuration and the reason, for people; empty if the device was set explicitly."""
    if not config.device_is_open:
        return ""
    unused = f" Not used: {', '.join(config.unused_options)}." if config.unused_options else ""
    return f"Computes on {config.machine.device}: {config.device_reason}.{unused}\n\n"


def device_choice(config: Config) -> dict[str, Any]:
    """The device of a resolved configuration and the reason, for programs."""
    return {
        "computes_on": config.machine.device,
        "device_reason": config.device_reason,
        "unused_options": list(config.unused_options),
    }


def _dense_lines(gpus: GpuPlan) -> list[str]:
    as_bfloat16 = human(gpus.bfloat16_bytes)
    return [
        f"  Dense weights keep the file's types, even if memory is free: bfloat16 would take {as_bfloat16}, all",
        "  read in every step, and results would be less exact.",
    ]


def _long_step_lines(numbers: Numbers, gpus: GpuPlan) -> list[str]:
    longest = f"  have up to {numbers.step_tokens} prompt tokens, while other requests decode."
    stream, set_from = gpus.streaming, numbers.stream_from_tokens
    if not gpus.has_host_experts:
        return [longest, "  No expert is streamed: all are in the GPU's memory."]
    if stream is None:
        why = "stream_from_tokens is 0" if set_from == 0 else "their buffers do not fit"
        lines = [longest, f"  The CPU computes their experts; none is streamed, because {why}."]
        if gpus.streaming_cache_lens:
            lines.append(f"  They would fit with cache_lens = {gpus.streaming_cache_lens}.")
        return lines
    basis = "measured at start" if set_from is None else f"stream_from_tokens is set to {set_from}"
    through = "the GPU" if len(gpus.devices) == 1 else f"{len(gpus.devices)} GPUs"
    return [
        longest,
        f"  The experts, {human(stream.pass_bytes)}, pass through {through} in about {stream.pass_s:.2g} s, which "
        f"pays off from about {stream.from_tokens} tokens:",
        f"  an estimate by {stream.assumed}; {basis}.",
    ]


def _pcie_lines(numbers: Numbers, gpus: GpuPlan) -> list[str]:
    by = share_is_estimated_by(sum(numbers.threads_per_node))
    share_basis = "Set by pcie_share." if gpus.pcie_share_is_set else f"An estimate by {by}; measured at start."
    return [
        f"  The GPU reads {gpus.pcie_share:.2g} of a step's experts in host memory across PCIe; the CPU computes "
        "the others.",
        f"  {share_basis}",
    ]


def rule_lines(placement: Placement) -> list[str]:
    """The effect of each placement rule, then the notes, one line each: for the plan and for the log."""
    lines = []
    for report in placement.rules:
        others = ", ".join(map(str, report.hidden_by))
        if report.shadowed:
            effect = f"shadowed: everything it matches went to rule {others}"
        else:
            count = "1 module" if len(report.modules) == 1 else f"{len(report.modules)} modules"
            effect = f"{count}, {report.modules[0] or 'the whole model'} the first"
            effect += f"; others it matches went to rule {others}" if others else ""
        lines.append(f"rule {report.rule.index} ({report.rule.match}): {effect}")
    return [*lines, *placement.notes]


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
        "lengths": None if plan.lengths is None else _lengths(plan.lengths),
        **_memory(plan),
        "prefill_chunk_size": plan.numbers.prefill_chunk_size,
        "stream_from_tokens": plan.numbers.stream_from_tokens,
        "device": None if plan.gpus is None else _gpus(plan.gpus),
        "rules": [
            {
                "index": report.rule.index,
                "match": report.rule.match,
                "modules": list(report.modules),
                "shadowed": report.shadowed,
                "hidden_by": list(report.hidden_by),
            }
            for report in plan.placement.rules
        ],
        "notes": list(plan.placement.notes),
    }


def _lengths(lengths: Lengths) -> dict[str, Any]:
    return {
        "max_new_tokens": lengths.max_new_tokens,
        "cache_lens": lengths.cache_lens,
        "derived": dict(lengths.derived),
    }


def sums(plan: MemoryPlan) -> dict[str, int]:
    """The bytes that the plan needs on the `host`, and as `device` on all GPUs, if there are any."""
    on_gpus = {} if plan.gpus is None else {"device": plan.gpus.needed_bytes}
    return {"host": plan.needed_bytes, **on_gpus}


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    """The needed and available memory of the host."""
    return {
        "memory": _by_name(plan.uses),
        "needed_bytes": plan.needed_bytes,
        "available_bytes": plan.memory.available_bytes,
        "limited_by": plan.memory.limited_by,
        "fits": plan.fits,
        "max_cache_lens": plan.max_cache_lens,
    }


def _gpus(plan: GpuPlan) -> dict[str, Any]:
    """The GPUs together."""
    uses = Counter[str]()
    for device in plan.devices:
        uses.update(_by_name(device.uses))
    return {
        "name": ", ".join(device.memory.name for device in plan.devices),
        "memory": dict(uses),
        "needed_bytes": plan.needed_bytes,
        "available_bytes": sum(device.memory.available_bytes for device in plan.devices),
        "limited_by": ", ".join(dict.fromkeys(device.memory.limited_by for device in plan.devices)),
        "fits": plan.fits,
        "max_cache_lens": plan.max_cache_lens,
        "cache_limited_by": plan.cache_limiter.memory.name,
        "streaming_cache_lens": plan.streaming_cache_lens,
        "devices": [
            {
                "name": device.memory.name,
                "layers": [device.layers[0], device.layers[-1]],
                "memory": _by_name(device.uses),
                "needed_bytes": device.needed_bytes,
                "available_bytes": device.memory.available_bytes,
                "limited_by": device.memory.limited_by,
                "fits": device.fits,
                "max_cache_lens": device.max_cache_lens,
            }
            for device in plan.devices
        ],
        "resident_experts": [len(ids) for ids in plan.gpu_experts],
        "pcie_share": plan.pcie_share,
        "pcie_share_is_set": plan.pcie_share_is_set,
        "dense_bytes_as_bfloat16": plan.bfloat16_bytes,
        "streaming": None
        if plan.streaming is None
        else {
            "pass_bytes": plan.streaming.pass_bytes,
            "pass_s": plan.streaming.pass_s,
            "from_tokens": plan.streaming.from_tokens,
        },
    }


def _by_name(uses: Sequence[MemoryRow]) -> dict[str, int]:
    return {use.name.replace(" ", "_").lower(): use.num_bytes for use in uses}


def _limit(memory: Memory) -> str:
    return "" if memory.limited_by is None else f", the limit of cgroup {memory.limited_by}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Aligned columns, indented; those in `right` are right-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
