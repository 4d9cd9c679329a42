"""Estimates tokens per second of a plan, and the resource that limits them. Pure arithmetic.

A decode step of B tokens reads the dense weights once, and the routed experts that B tokens select: the expected number
of different ones if all are equally likely. Reading and arithmetic overlap partly, so a side takes the root of the sum
of their squares. A GPU adds a fixed time per layer. The constants follow the records in benchmarks/results; tests
compare the estimates with these. Contexts are assumed to be short: reading a long cache takes additional time. A step
of a prompt is its first one, whose tokens see each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast.host.sizes import human
from ballast.moe.expert_skew import ExpertUse, ReadExperts

_MEMORY_SHARE = 0.82
"""Fraction of the host memory bandwidth that a step reaches."""
_THREAD_FLOPS: Mapping[str, float] = {"amx": 250e9, "avx512": 250e9, "avx2": 130e9, "reference": 1e9}
"""Operations per second of one thread, by instruction set, with activations of two bytes."""
_FASTER_WITH_A_BYTE = 1.6
"""Factor for activations of one byte."""
_GPU_SHARE = 0.5
"""Fraction of a GPU's memory bandwidth that a step reaches."""
_GPU_WEIGHTS_PER_BYTE = 0.8
"""Weights of experts that a GPU decodes in the time of a byte of its memory bandwidth: 3.8e12 per second on an H200,
which limits types of few bits. Those with tables (IQ) are slower still."""
_STEP_S = 0.6e-3
"""Time of a decode step on a CPU outside the model (planning, delivery); only noticeable for the smallest models. With
a GPU it overlaps."""
_REQUEST_S = 0.2e-3
"""Additional time per request in a step: its token, text and stream."""
_GPU_LAYER_S = 140e-6
"""Time per layer on a GPU in addition to reading its weights: small kernels and gaps between them."""
_QUICK_LAYER_S = 65e-6
"""The same of layers with few kernels; see `Work.num_quick_layers`."""
_GPU_FLOPS_PER_BYTE = 100.0
"""Operations of a product of many tokens per byte of the GPU's memory bandwidth: 480 TFLOP/s on an H200."""
_HALF_SPEED_TOKENS = 400
"""Tokens with which a product reaches half of that: an H200 computes experts with 115 TFLOP/s for 128 tokens each, and
with 185 for 256."""
_ATTENTION_FLOPS_PER_BYTE = 80.0
"""The same of attention: about 390 TFLOP/s on an H200, where R1's keys are expanded. Grouped attention without
flashinfer has about half of it."""
_PREFILL_NORM = 3.0
"""Overlap of streaming experts and computing with them on a GPU: 1 means none."""
_CPU_NORM = 2.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Memory and bus rates of a machine, in bytes per second."""

    memory: float
    """Rate at which all threads together read host memory."""
    num_threads: int
    isa: str
    activation_bytes: int = 2
    gpu_memory: float | None = None
    """Of each GPU, as `pcie`."""
    pcie: float | None = None
    num_gpus: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a forward pass: weights in bytes and in numbers."""

    dense_bytes: int
    """Weights that every token needs."""
    dense_weights: int
    expert_bytes: int
    """All routed experts."""
    expert_weights: int
    num_layers: int
    num_experts: int
    num_experts_used: int
    num_quick_layers: int = 0
    """Layers with grouped-query attention whose experts need no transfer to the CPU."""
    on_gpu: bool = False
    """Whether a GPU computes all but the routed experts in host memory."""
    gpu_expert_share: float = 0.0
    """Fraction of the routed experts in a GPU's memory."""
    state_bytes: int = 0
    """The recurrent state of a sequence. A token of a reply reads and writes it; in a prompt it stays in caches."""
    streams: bool = False
    """Whether long steps stream the other experts through the GPU."""
    part_tokens: int = 0
    """Tokens of a part of a step, if GPUs that hold all experts compute different parts at the same time."""
    attention: Mapping[int | None, float] = field(default_factory=dict)
    """Operations of all layers per pair of a token and a position that it sees, by the most positions that a token
    sees; None: all."""

    def used_share(self, num_tokens: int) -> float:
        """The expected fraction of the routed experts that a step of `num_tokens` tokens selects."""
        if not self.num_experts:
            return 0.0
        return 1.0 - (1.0 - self.num_experts_used / self.num_experts) ** num_tokens

    @property
    def expert_weights_of_a_token(self) -> float:
        return self.expert_weights * self.num_experts_used / self.num_experts if self.num_experts else 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected speed, and the resource that limits it."""

    tokens_per_s: float
    limit: str


def decode(work: Work, rates: Rates, batch: int, read: ReadExperts | None = None) -> Expected:
    """A decode step of `batch` requests: tokens per second of all requests together. `read`: the experts of the step;
    None: all are used equally."""
    if read is None:
        chosen, gpu_share = work.used_share(batch), work.gpu_expert_share if work.on_gpu else 0.0
        read = ReadExperts(chosen * (1.0 - gpu_share), chosen * gpu_share, 1.0 - gpu_share)
    host_bytes = work.expert_bytes * read.on_host
    host_weights = work.expert_weights_of_a_token * read.host_uses
    phases = {}
    if work.on_gpu:
        assert rates.gpu_memory is not None, "a plan with a GPU has its rate"
        gpu_bytes = work.dense_bytes + 2 * batch * work.state_bytes
        expert_cost = max(work.expert_bytes / _GPU_SHARE, work.expert_weights / _GPU_WEIGHTS_PER_BYTE) * read.on_gpu
        phases["the GPU's memory"] = (gpu_bytes / _GPU_SHARE + expert_cost) / rates.gpu_memory
        others = work.num_layers - work.num_quick_layers
        phases["the GPU's steps from layer to layer"] = others * _GPU_LAYER_S + work.num_quick_layers * _QUICK_LAYER_S
    else:
        host_bytes += work.dense_bytes + 2 * batch * work.state_bytes
        host_weights += work.dense_weights
        phases["the program between steps"] = _STEP_S + batch * _REQUEST_S
    reading = host_bytes / (rates.memory * _MEMORY_SHARE)
    computing = 2.0 * batch * host_weights / _host_flops(rates)
    host = _together(reading, computing, _CPU_NORM)
    phases["host memory" if reading >= computing else "the CPU's arithmetic"] = host
    return _expected(batch, phases, host_bytes)


def gain_by_following(work: Work, rates: Rates, batch: int, use: ExpertUse) -> tuple[Expected, float]:
    """The speed of a decode step whose experts in GPU memory follow use without delay, and by how much it is faster
    than with as many experts that do not."""
    gpu_share = work.gpu_expert_share if work.on_gpu else 0.0
    following, staying = (
        decode(work, rates, batch, use.read(batch, gpu_share, follows=follows)) for follows in (True, False)
    )
    return following, following.tokens_per_s / staying.tokens_per_s


def prefill(work: Work, rates: Rates, num_tokens: int) -> Expected:
    """A step of `num_tokens` tokens of prompts."""
    chosen = work.used_share(num_tokens)
    if not work.on_gpu:
        weights = work.dense_weights + work.expert_weights_of_a_token
        reading = (work.dense_bytes + work.expert_bytes * chosen) / (rates.memory * _MEMORY_SHARE)
        computing = 2.0 * num_tokens * weights / _host_flops(rates)
        name = "host memory" if reading >= computing else "the CPU's arithmetic"
        return _expected(num_tokens, {name: _together(reading, computing, _CPU_NORM)})
    assert rates.gpu_memory is not None, "a plan with a GPU has its rates"
    assert rates.pcie is not None
    host_share = 1.0 - work.gpu_expert_share
    # GPUs compute one after the other, except experts that all of them stream, and parts of a step if they hold all.
    overlaps = rates.num_gpus > 1 and not host_share and work.part_tokens > 0
    num_parts = max(1, num_tokens // work.part_tokens) if overlaps else 1
    streamed_share = host_share / rates.num_gpus if work.streams else 0.0
    expert_weights = work.expert_weights_of_a_token * (work.gpu_expert_share + streamed_share)
    tokens_of_product = num_tokens / num_parts
    tokens_of_expert = tokens_of_product * work.num_experts_used / max(1, work.num_experts)
    computing = _attention_s(work, rates.gpu_memory, num_tokens)
    computing += 2.0 * num_tokens * work.dense_weights / _gpu_flops(rates.gpu_memory, tokens_of_product)
    computing += 2.0 * num_tokens * expert_weights / _gpu_flops(rates.gpu_memory, tokens_of_expert)
    if num_parts > 1:  # the last GPU begins when the others have computed the first part
        computing *= (num_parts + rates.num_gpus - 1) / (num_parts * rates.num_gpus)
    if work.streams:
        passing = work.expert_bytes * chosen * host_share / (rates.pcie * rates.num_gpus)
        name = "PCIe" if passing >= computing else "the GPU's arithmetic"
        return _expected(num_tokens, {name: _together(passing, computing, _PREFILL_NORM)})
    host_weights = work.expert_weights_of_a_token * host_share
    phases = {
        "the GPU's arithmetic": computing,
        "the CPU's arithmetic": 2.0 * num_tokens * host_weights / _host_flops(rates),
    }
    return _expected(num_tokens, phases)


def _gpu_flops(gpu_memory: float, num_tokens: float) -> float:
    """Operations per second of products with `num_tokens` tokens."""
    return gpu_memory * _GPU_FLOPS_PER_BYTE * num_tokens / (num_tokens + _HALF_SPEED_TOKENS)


def _attention_s(work: Work, gpu_memory: float, num_tokens: int) -> float:
    """Seconds in which a GPU computes the attention of the first `num_tokens` tokens of a prompt."""
    total = 0.0
    for most, operations in work.attention.items():
        seen = num_tokens if most is None else min(most, num_tokens)
        total += operations * (num_tokens * seen - seen**2 / 2)
    return total / (gpu_memory * _ATTENTION_FLOPS_PER_BYTE)


def _host_flops(rates: Rates) -> float:
    faster = _FASTER_WITH_A_BYTE if rates.activation_bytes == 1 else 1.0
    return faster * rates.num_threads * _THREAD_FLOPS.get(rates.isa, _THREAD_FLOPS["reference"])


def _together(a: float, b: float, norm: float) -> float:
    """Seconds of two activities that overlap partly."""
    return float((a**norm + b**norm) ** (1.0 / norm))


def _expected(num_tokens: int, phases: Mapping[str, float], host_bytes: float = 0.0) -> Expected:
    """`phases`: seconds of consecutive phases, by the resource that limits each."""
    name = max(phases, key=lambda phase: phases[phase])
    total = sum(phases.values())
    limit = f"{name}, {human(int(host_bytes))} per step" if name == "host memory" and host_bytes else name
    return Expected(num_tokens / total if total > 0 else 0.0, limit)
