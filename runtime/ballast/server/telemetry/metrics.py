"""Prometheus metrics. The engine's numbers are read on a scrape; only durations are recorded as they occur.

Names, labels and units are a contract with dashboards. Aliases repeat the main ones under vLLM's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ballast.engine.observer import StepKind
from ballast.engine.request import FinishReason
from ballast.engine.tier_mover import TierNumbers
from ballast.generation.engine_port import EnginePort
from ballast.metric import Counter as CounterNumber
from ballast.metric import Gauge, declared, metrics_of
from ballast.model.device_counts import NO_DEVICE, DeviceNumbers
from ballast.model.switched_off import FEATURES

# Without the extra series for the creation time of each counter.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotation here

# Bucket limits in seconds and tokens, the same as vLLM's, so that quantiles can be compared.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
    *(640, 2560),
)
INTER_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
REQUEST_BUCKETS = (*(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),)
STEP_BUCKETS = (0.001, 0.0025, 0.005, *FIRST_TOKEN_BUCKETS[2:-2])
REQUEST_TOKENS_BUCKETS = (
    *(
        1,
        2,
        5,
        10,
        20,
        50,
        100,
        200,
        500,
        1000,
        2000,
        5000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
    ),
)
STEP_TOKENS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """All metrics of /metrics. The `on_…` methods implement EngineObserver and run on the engine's thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "ballast_requests",
            "Ended requests, by endpoint and outcome. Only POST requests count, so probes and scrapes do not.",
            ["endpoint", "outcome"],
            registry=self.registry,
        )
        self._ignored = Counter(
            "ballast_ignored_fields",
            "Request fields without effect; replies and the log list them.",
            registry=self.registry,
        )
        self._lowered = Counter(
            "ballast_lowered_max_tokens",
            "Requests for more tokens than --max_new_tokens, which were limited to it.",
            registry=self.registry,
        )
        self._first_token = self._seconds(
            "time_to_first_token", "Time from submission to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token = self._seconds(
            "inter_token_latency", "Time between two tokens of a request.", INTER_TOKEN_BUCKETS
        )
        self._duration = self._seconds("request_duration", "Time from submission to the last token.", REQUEST_BUCKETS)
        self._queue = self._seconds("request_queue", "Time from submission to the first step.", REQUEST_BUCKETS)
        self._step = Histogram(
            "ballast_step_seconds",
            "Duration of engine steps, by kind.",
            ["kind"],
            buckets=STEP_BUCKETS,
            registry=self.registry,
        )
        self._step_tokens = Histogram(
            "ballast_step_tokens", "Tokens in a step.", buckets=STEP_TOKENS_BUCKETS, registry=self.registry
        )

        self._finished = Counter(
            "ballast_finished",
            "Finished sequences by reason: stop, length. Aborted ones are not counted.",
            ["reason"],
            registry=self.registry,
        )
        for reason in FinishReason:
            self._finished.labels(reason.value)
        self._prompt_size = self._tokens("request_prompt", "Prompt tokens of a finished sequence.")
        self._reply_size = self._tokens("request_generation", "Generated tokens of a finished sequence.")

    def _tokens(self, name: str, what: str) -> Histogram:
        return Histogram(f"ballast_{name}_tokens", what, buckets=REQUEST_TOKENS_BUCKETS, registry=self.registry)

    def _seconds(self, name: str, what: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"ballast_{name}_seconds", what, buckets=tuple(buckets), registry=self.registry)

    def watch(self, engine: EnginePort, *, model_name: str, build: dict[str, str], alias: bool) -> None:
        """Add the metrics of `engine`, and with `alias` the same under vLLM's names."""
        self.registry.register(_EngineCollector(engine, model_name, build))
        if alias:
            histograms = {
                "vllm:time_to_first_token_seconds": self._first_token,
                "vllm:inter_token_latency_seconds": self._inter_token,
                "vllm:e2e_request_latency_seconds": self._duration,
                "vllm:request_queue_time_seconds": self._queue,
                "vllm:request_prompt_tokens": self._prompt_size,
                "vllm:request_generation_tokens": self._reply_size,
            }
            self.registry.register(_VllmCollector(engine, model_name, histograms, self._finished))

    def expose(self, accept: str) -> tuple[bytes, str]:
        """The metrics page and its content type, in the format preferred by the Accept header `accept`."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def count_request(self, endpoint: str, outcome: str) -> None:
        """A request has ended."""
        self._requests.labels(endpoint, outcome).inc()

    def count_ignored(self, num_fields: int) -> None:
        """A request had ignored fields."""
        self._ignored.inc(num_fields)

    def count_lowered(self) -> None:
        """A request asked for more tokens than it may generate."""
        self._lowered.inc()

    def on_step(self, kind: StepKind, duration_s: float, num_tokens: int) -> None:
        """A step has run."""
        self._step.labels(kind).observe(duration_s)
        self._step_tokens.observe(num_tokens)

    def on_first_token(self, ttft_s: float, queue_s: float) -> None:
        """A request got its first token."""
        self._first_token.observe(ttft_s)
        self._queue.observe(queue_s)

    def on_inter_token(self, latency_s: float) -> None:
        """A request got one more token."""
        self._inter_token.observe(latency_s)

    def on_finish(self, duration_s: float, reason: FinishReason, prompt_tokens: int, generated_tokens: int) -> None:
        """A request finished."""
        self._duration.observe(duration_s)
        self._finished.labels(reason.value).inc()
        self._prompt_size.observe(prompt_tokens)
        self._reply_size.observe(generated_tokens)


_FAMILIES: Mapping[type[Gauge | CounterNumber], type[GaugeMetricFamily | CounterMetricFamily]] = {
    Gauge: GaugeMetricFamily,
    CounterNumber: CounterMetricFamily,
}


class _EngineCollector(Collector):
    def __init__(self, engine: EnginePort, model_name: str, build: dict[str, str]) -> None:
        self._engine = engine
        self._model_name = model_name
        self._build = build

    def collect(self) -> Iterator[Metric]:
        now = self._engine.snapshot()
        for metric, value in (*metrics_of(now), *metrics_of(now.device_counts)):
            yield family_of(metric, value)
        switched_off = GaugeMetricFamily(
            "ballast_switched_off",
            "Whether the start has switched this GPU feature off; the log and /debug/state have the reason.",
            labels=["feature"],
        )
        for feature in FEATURES:
            switched_off.add_metric([feature], feature in now.device_counts.switched_off)
        yield switched_off
        start = GaugeMetricFamily(
            "ballast_start_seconds", "Seconds per phase of the start, from loading to ready.", labels=["phase"]
        )
        for phase, seconds in self._engine.start_seconds.items():
            start.add_metric([phase], seconds)
        yield start
        costs = GaugeMetricFamily(
            "ballast_step_cost_seconds",
            "Predicted seconds of a step, by lane and number of tokens; measured at start, updated at run time.",
            labels=["lane", "tokens"],
        )
        for lane, points in now.step_costs.items():
            for tokens, seconds in points:
                costs.add_metric([lane, str(tokens)], seconds)
        yield costs
        yield from _labelled(TierNumbers, "tier", now.tiers)
        yield from _labelled(DeviceNumbers, "device", now.device_counts.devices or (NO_DEVICE,))
        yield InfoMetricFamily("ballast_build", "Version of the running program.", self._build)
        yield InfoMetricFamily("ballast_model", "The served model.", {"model_name": self._model_name})


def _labelled(
    kind: type[TierNumbers | DeviceNumbers], label: str, several: Sequence[TierNumbers | DeviceNumbers]
) -> Iterator[Metric]:
    """The metrics that `kind` declares, one sample per element of `several`, with its name as the label."""
    for name, metric in declared(kind).items():
        family = family_of(metric, labels=[label])
        for each in several:
            family.add_metric([each.name], getattr(each, name))
        yield family


def family_of(
    metric: Gauge | CounterNumber, value: float | None = None, labels: Sequence[str] | None = None
) -> GaugeMetricFamily | CounterMetricFamily:
    """The family of a metric that is declared, with its value unless it has labels."""
    return _FAMILIES[type(metric)](f"ballast_{metric.name}", metric.help, value, labels)


class _VllmCollector(Collector):
    """The same numbers under the names that dashboards, autoscalers and inference gateways expect."""

    def __init__(
        self, engine: EnginePort, model_name: str, histograms: dict[str, Histogram], finished: Counter
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._histograms = histograms
        self._finished = finished

    def collect(self) -> Iterator[Metric]:
        now = self._engine.snapshot()
        for metric, value in metrics_of(now):
            if metric.alias is not None:
                alias = _FAMILIES[type(metric)](metric.alias, "Alias.", labels=["model_name"])
                alias.add_metric([self._model_name], value)
                yield alias
        success = CounterMetricFamily("vllm:request_success", "Alias.", labels=["model_name", "finished_reason"])
        for sample in next(iter(self._finished.collect())).samples:
            success.add_metric([self._model_name, sample.labels["reason"]], sample.value)
        yield success
        for name, histogram in self._histograms.items():
            yield _renamed(histogram, name, self._model_name)


def _renamed(histogram: Histogram, name: str, model_name: str) -> Metric:
    (source,) = histogram.collect()
    buckets = [(s.labels["le"], s.value) for s in source.samples if s.name.endswith("_bucket")]
    (total,) = (s.value for s in source.samples if s.name.endswith("_sum"))
    family = HistogramMetricFamily(name, "Alias.", labels=["model_name"])
    family.add_metric([model_name], buckets, total)
    return family
