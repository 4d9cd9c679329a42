"""The expected speed of a plan, for people and for programs: from the plan's weights and the machine's rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ballast._core import kernels
from ballast.errors import ConfigError
from ballast.host.bandwidth import gpu_bytes_per_s, memory_bytes_per_s
from ballast.host.machine import Memory
from ballast.model.hybrid.steps.slices import overlap_tokens
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import EMBEDDING, expected_tensors
from ballast.moe.expert_skew import ExpertSkew, ExpertUse
from ballast.plan.described import Described
from ballast.plan.memory import MemoryPlan
from ballast.plan.speed import Expected, Rates, Work, decode, gain_by_following, prefill
from ballast.weights.gguf import GgufModel

BATCHES = (1, 4, 16)
ASSUMED_GPU_BYTES_PER_S = 1000e9
"""Memory bandwidth of an unknown GPU: that of a consumer card."""
ASSUMED_PCIE_BYTES_PER_S = 25e9
"""PCIe 4.0 with 16 lanes."""


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """Decode speeds by number of requests, and the speed of long prompts."""

    decode: dict[int, Expected]
    prefill: Expected
    prefill_tokens: int
    """Tokens of the step that `prefill` estimates."""
    rates: Rates
    sources: tuple[str, ...]
    """Each rate with its source, for people."""
    skew: ExpertSkew | None = None
    following: Mapping[int, tuple[Expected, float]] = field(default_factory=dict)
    """By number of requests, the speed and the gain if experts follow use and have the `skew`."""

    def lines(self) -> list[str]:
        """The report for people."""
        rows = [*((_requests(batch), found) for batch, found in self.decode.items()), ("prompts", self.prefill)]
        width = max(len(name) for name, _ in rows)
        speeds = [_line(name, width, found, found.limit) for name, found in rows]
        head, basis = f"  {'':{width}}  tokens/s and limit", f"  Based on {', '.join(self.sources)}."
        return [head, *speeds, *self._following_lines(width), basis]

    def _following_lines(self, width: int) -> Iterator[str]:
        if self.skew is None:
            return
        yield (
            f"  If the {self.skew.num_hot} most used experts of each layer get {self.skew.share:.0%} of the uses, with "
            "gpu_experts_update=on at most:"
        )
        for batch, (found, gain) in self.following.items():
            yield _line(_requests(batch), width, found, f"{gain:.2f} times as fast as off")

    def to_json(self) -> dict[str, Any]:
        """The report for programs."""

        def entry(found: Expected) -> dict[str, Any]:
            return {"tokens_per_s": round(found.tokens_per_s, 2), "limit": found.limit}

        return {
            "decode": {str(batch): entry(found) for batch, found in self.decode.items()},
            "prefill": {**entry(self.prefill), "tokens": self.prefill_tokens},
            "following": {
                str(batch): {**entry(found), "gain": round(gain, 3)} for batch, (found, gain) in self.following.items()
            },
            "memory_bytes_per_s": self.rates.memory,
            "gpu_memory_bytes_per_s": self.rates.gpu_memory,
            "pcie_bytes_per_s": self.rates.pcie,
            "threads": self.rates.num_threads,
            "isa": self.rates.isa,
        }


def work_of(gguf: GgufModel, spec: ModelSpec, plan: MemoryPlan) -> Work:
    """The work of a forward pass under a plan."""
    num_bytes, num_weights = {True: 0, False: 0}, {True: 0, False: 0}
    for name, tensor in expected_tensors(spec).items():
        if not tensor.read_in_place or (name == EMBEDDING and spec.tied_output):
            routed = tensor.group == "routed experts"
            num_bytes[routed] += gguf.tensors[name].num_bytes
            num_weights[routed] += math.prod(tensor.shape)
    num_routed = spec.routing.num_experts * len(spec.routed_layers)
    num_grouped = sum(isinstance(layer.mixer, GroupedSpec) for layer in spec.layers)
    on_gpu = plan.gpus is not None
    return Work(
        dense_bytes=num_bytes[False],
        dense_weights=num_weights[False],
        expert_bytes=num_bytes[True],
        expert_weights=num_weights[True],
        num_layers=spec.num_layers,
        num_experts=spec.routing.num_experts,
        num_experts_used=spec.routing.num_experts_used,
        num_quick_layers=num_grouped if plan.holds_all_experts else 0,
        on_gpu=on_gpu,
        gpu_expert_share=sum(map(len, plan.gpu_experts)) / num_routed if on_gpu else 0.0,
        state_bytes=spec.state_bytes,
        streams=plan.numbers.streams_experts,
        part_tokens=overlap_tokens(spec.routing),
        attention=attention_work(spec),
    )


def attention_work(spec: ModelSpec) -> dict[int | None, float]:
    """`Work.attention`: latents are expanded to keys and values, unless tokens select positions."""
    found: Counter[int | None] = Counter()
    for layer in spec.layers:
        mixer = layer.mixer
        if isinstance(mixer, LatentSpec):
            is_latent = mixer.index is not None
            width = mixer.latent_dim + mixer.kv_lora_rank if is_latent else mixer.query_dim + mixer.v_dim
            found[None if mixer.index is None else mixer.index.most_chosen] += 2 * mixer.num_heads * width
        elif isinstance(mixer, GroupedSpec):
            found[mixer.window] += 2 * mixer.num_heads * (mixer.head_dim + mixer.v_dim)
    return dict(found)


def usual_activation_bytes(gguf: GgufModel, spec: ModelSpec) -> int:
    """Bytes that activations are rounded to by default for most of the model's weights; floats count as two."""
    of_type = {each.ggml_type: each.activation_bytes or 2 for each in kernels.formats()}
    num_weights: Counter[int] = Counter()
    for name, tensor in expected_tensors(spec).items():
        if not tensor.below and tensor.read_in_place != "few rows":
            num_weights[of_type[gguf.tensors[name].ggml_type]] += math.prod(tensor.shape)
    return num_weights.most_common(1)[0][0]


def speed_report(
    gguf: GgufModel,
    spec: ModelSpec,
    plan: MemoryPlan,
    here: Memory,
    described: Described,
    gpu_name: str | None,
    activation_bytes: int | None,
) -> SpeedReport | None:
    """The report; None if memory cannot be measured and is not described. `here`: this machine's memory; a measurement
    uses some of it for a second. `gpu_name`: the GPU's model, None if there is none. `activation_bytes`: None if each
    type has its own."""
    threads, isa = sum(plan.numbers.threads_per_node), plan.numbers.isa
    measured = described.memory_bandwidth is None
    memory = memory_bytes_per_s(threads, here) if measured else described.memory_bandwidth
    if not memory:
        return None
    sources = [f"{memory / 1e9:.0f} GB/s of host memory, {'measured now' if measured else 'as described'}"]
    sources.append(f"{threads} threads of {isa}")
    gpu = pcie = None
    if plan.gpus is not None:
        known = None if gpu_name is None else gpu_bytes_per_s(gpu_name)
        gpu = described.gpu_bandwidth or known or ASSUMED_GPU_BYTES_PER_S
        pcie = described.pcie or ASSUMED_PCIE_BYTES_PER_S
        whose = "as described" if described.gpu_bandwidth else f"{gpu_name}'s" if known else "assumed"
        sources.append(f"{gpu / 1e9:.0f} GB/s of the GPU's memory, {whose}")
        each = f" to each of {len(plan.devices)} GPUs" if len(plan.devices) > 1 else ""
        sources.append(f"{pcie / 1e9:.0f} GB/s across PCIe{each}, {'as described' if described.pcie else 'assumed'}")
    sources.append("short contexts")
    rounded_to = activation_bytes or usual_activation_bytes(gguf, spec)
    rates = Rates(memory, threads, isa, rounded_to, gpu, pcie, max(1, len(plan.devices)))
    work = work_of(gguf, spec, plan)
    tokens = plan.numbers.step_tokens
    decoded = {batch: decode(work, rates, batch) for batch in BATCHES}
    skew = described.hot_experts
    following: dict[int, tuple[Expected, float]] = {}
    if skew is not None:
        if plan.gpus is None:
            problem = "estimates experts that move in a GPU's memory, and this plan has no GPU; leave it out"
            raise ConfigError("hot_experts", f"{skew.num_hot}:{skew.share:g}", problem)
        use = ExpertUse(skew, work.num_experts, work.num_experts_used)
        following = {batch: gain_by_following(work, rates, batch, use) for batch in BATCHES}
    return SpeedReport(decoded, prefill(work, rates, tokens), tokens, rates, tuple(sources), skew, following)


def _requests(batch: int) -> str:
    return f"{batch} request{'s' if batch > 1 else ''}"


def _line(name: str, width: int, found: Expected, remark: str) -> str:
    speed = found.tokens_per_s
    shown = f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"
    return f"  {name:{width}}  {shown:>6}  {remark}"
