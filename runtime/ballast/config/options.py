"""Every option of `ballast serve`, defined once. The command line, the environment variables and the documentation are
generated from the dataclass fields below.

A value of None means "auto" or "not given"; `resolve` replaces it. Values are checked on construction, so each value of
a `Config` is in range.
"""

# ruff: noqa: RUF009  option() makes a dataclasses.field, which is meant to be called in a class body
from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ballast.config.kinds import (
    PATH,
    SWITCH,
    Kind,
    calendar_date,
    each_of,
    fraction,
    on_off,
    one_of,
    seconds,
    share,
    size,
    text,
    whole,
    whole_range,
)
from ballast.config.whole_range import WholeRange
from ballast.errors import ConfigError
from ballast.families.registry import RELEASES
from ballast.host.numa_mode import NumaMode
from ballast.host.startup.measurements import MeasurementMode

ENVIRONMENT_PREFIX = "BALLAST_"

MAX_TOKENS = 2**30
"""The scheduler counts slots in 32 bits."""

BackendType = Literal["balance_serve", "ktransformers"]
QueuePolicy = Literal["fair", "fcfs"]
LogFormat = Literal["text", "json"]
ReasoningField = Literal["reasoning_content", "reasoning", "both", "none"]
LogLevel = Literal["debug", "info", "warning", "error"]
KvTypeOption = Literal["auto", "fp32", "fp16", "fp8"]
MetricsAlias = Literal["vllm", "none"]
UnknownFields = Literal["ignore", "refuse"]


def option(default: Any, kind: Kind, help_text: str) -> Any:
    """A dataclass field that is an option."""
    return field(default=default, metadata={"kind": kind, "help": help_text})


@dataclass(frozen=True)
class _Section:
    """A group of related options. Raises ConfigError for a value out of range."""

    title: ClassVar[str]

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            kind: Kind = item.metadata["kind"]
            value = getattr(self, item.name)
            if value is not item.default and not kind.accepts(value):
                raise ConfigError(item.name, value, f"must be {kind.allowed}")


@dataclass(frozen=True)
class ModelConfig(_Section):
    title = "model"

    model_path: Path | None = option(
        None,
        PATH,
        "local directory with config.json and the tokenizer files; default: use those in the GGUF",
    )
    gguf_path: Path | None = option(
        None,
        PATH,
        "a GGUF file, or the directory of one model's shards; default: the built-in tiny model",
    )
    optimize_config_path: Path | None = option(
        None, PATH, "YAML file of placement rules for routed experts; default: the plan decides"
    )
    served_model_name: tuple[str, ...] = option(
        (),
        text("a name", "NAME", r"\S(.*\S)?", repeatable=True),
        "name in replies and in /v1/models; repeat for several names. Default: the model's own name",
    )
    strict_model_name: bool = option(False, SWITCH, "refuse requests that name another model")
    chat_template: str | None = option(
        None,
        text("a template's name or a file", "TEMPLATE"),
        f"{', '.join(RELEASES)}, or a Jinja file; default: the model's own template, or Ballast's corrected version of "
        "it if it is a known published one",
    )
    trust_request_chat_template: bool = option(
        False,
        SWITCH,
        "allow requests to bring their own Jinja template in chat_template; it runs in a guarded process, like "
        "templates of model files",
    )
    prompt_date: str = option(
        "today",
        calendar_date(),
        "the date that chat templates write into prompts, such as that of gpt-oss; today: it changes at midnight, and "
        "cached prompts with the old date are not found any more",
    )
    force_think: bool = option(False, SWITCH, "begin every reply inside <think> (useful for R1)")
    reasoning_field: ReasoningField = option(
        "reasoning_content",
        one_of("reasoning_content", "reasoning", "both", "none"),
        "field of a chat reply that holds the reasoning; none: reasoning stays in the content, including its tags",
    )


@dataclass(frozen=True)
class SchedulingConfig(_Section):
    title = "scheduling and KV cache"

    max_new_tokens: int | None = option(
        None,
        whole(1, MAX_TOKENS, auto=True),
        "most tokens that one request may generate, and the default; auto: as many as cache_lens holds for a full "
        "batch, up to the model's context and 32768",
    )
    cache_lens: int | None = option(
        None,
        whole(1, MAX_TOKENS, auto=True),
        "KV tokens that all requests share; must be greater than max_batch_size * max_new_tokens; auto: by the "
        "available memory, for a full batch of replies of 8192 tokens and up to the model's context; at least 32768 "
        "if a GPU then holds all experts",
    )
    max_batch_size: int = option(4, whole(1, 4096), "most requests in one step")
    chunk_size: int = option(256, whole(1, MAX_TOKENS), "most tokens in a step in which requests decode")
    prefill_chunk_size: int | None = option(
        None,
        whole(1, MAX_TOKENS, auto=True),
        "most prompt tokens in a step in which no request decodes, and in a pass that streams experts through a GPU; "
        "auto: chunk_size, or with a GPU up to 16384 or what cache_lens needs, as its memory allows",
    )
    max_stall_ms: int | None = option(
        None,
        whole(0, 3_600_000, auto=True),
        "most milliseconds that prompts may add to a step in which requests decode, by measured costs; auto: the "
        "duration of the step without prompts if a GPU streams experts, otherwise 3 times that; if more prompts wait "
        "than requests decode, the limit grows by their ratio",
    )
    block_tokens: int = option(
        32, one_of(16, 32, 64), "tokens in one KV block; with smaller blocks, requests share more of a prefix"
    )
    state_snapshots: int | None = option(
        None,
        whole(1, 1_000_000, auto=True),
        "recurrent states that the KV cache keeps for later requests, of models that have such state; a conversation "
        "needs one to four, and `ballast plan` shows their size; auto: the most of 2 * max_batch_size, cache_lens / "
        "8192, and 6 on a GPU or 32 on a CPU",
    )
    max_queue: int = option(256, whole(1, 1_000_000), "most waiting requests; further ones get a 429")
    max_queue_tokens: int | None = option(
        None,
        whole(1, 2**40, auto=True),
        "most prompt tokens that wait; further requests get a 429, unless the queue is empty; auto: 8 * cache_lens",
    )
    max_queue_wait_s: float = option(
        0.0,
        seconds(zero="no limit"),
        "reject a request (429) whose predicted queue time exceeds this many seconds; 0: no limit",
    )
    queue_policy: QueuePolicy = option(
        "fair",
        one_of("fair", "fcfs"),
        "order of waiting requests within a priority. fair: one request per client and round, first come, first served "
        "within a client; a client is an API key, or an address if there are no keys. fcfs: first come, first served",
    )
    client_priority: WholeRange | None = option(
        None,
        whole_range(),
        "priorities that clients may request in the field priority; lower ones are served first, and a request without "
        "one gets the priority nearest to 0. A line of --api_key_file may set another range for its key. "
        "Default: the field is ignored",
    )
    backend_type: BackendType = option(
        "balance_serve",
        one_of("balance_serve", "ktransformers"),
        "balance_serve: continuous batching; ktransformers: one request at a time",
    )


@dataclass(frozen=True)
class MachineConfig(_Section):
    title = "machine"

    cpu_threads: int | None = option(
        None,
        whole(1, 1024, auto=True),
        "compute threads; auto: one per physical core that this process may use, within its CPU quota",
    )
    numa: NumaMode = option(
        "auto",
        one_of("auto", "single", "off"),
        "auto: pin threads to their own cores, spread over the NUMA nodes; single: keep threads and weights on one "
        "node (preferably the GPU's) if it has enough cores, otherwise as auto; off: let the system schedule threads",
    )
    activation_bytes: int | None = option(
        None,
        whole(1, 2, auto=True),
        "bytes per activation in products with quantised weights; 1 is faster, 2 more exact; auto: 1 for weights of "
        "4.5 bits or less, whose own error is larger, otherwise 2",
    )
    device: str = option(
        "auto",
        text(
            "auto, cpu, cuda or cuda:N, several GPUs separated by commas",
            "auto|cpu|cuda|cuda:N[,...]",
            r"auto|cpu|cuda|cuda:(0|[1-9]\d?)(,cuda:(0|[1-9]\d?))*",
            listed=True,
        ),
        "device of the model; cuda: attention and shared weights on all visible GPUs, routed experts on the CPU; "
        "cuda:0,cuda:1: on these GPUs, in this order; auto: the first GPU if it can be used, otherwise cpu",
    )
    device_split: tuple[int, ...] | None = option(
        None,
        each_of(whole(1, 1024, auto=True), "3,1"),
        "ratio in which several GPUs divide the layers; auto: by their memory",
    )
    vram_limit: tuple[int, ...] | None = option(
        None,
        each_of(size(), "24GiB,40GiB"),
        "most memory to use on each GPU; auto: the free memory. With a value, `ballast plan` needs no GPU",
    )
    stream_from_tokens: int | None = option(
        None,
        whole(0, MAX_TOKENS, auto=True),
        "fewest tokens of a step whose routed experts are streamed through the GPU instead of computed by the CPU; "
        "auto: the break-even point, measured at start; 0: never",
    )
    gpu_experts: int | None = option(
        None,
        whole(0, auto=True),
        "routed experts, over all layers, that the GPU's memory holds and the GPU computes; auto: as many as fit",
    )
    gpu_experts_update: bool = option(
        False,
        on_off(),
        "on: experts that are used more replace others in the GPU's memory",
    )
    expert_profile: Path | None = option(
        None,
        PATH,
        "file of `ballast profile`: the most used experts get the GPU's memory first",
    )
    pcie_share: float | None = option(
        None,
        share(),
        "fraction of a decode step's experts in host memory that the GPU reads across PCIe; auto: the fastest, "
        "measured at start",
    )
    packed_dir: Path | None = option(
        None,
        PATH,
        "folder that keeps packed weights, so that the next start does not pack them again. In memory (a tmpfs), they "
        "are used in place and remain when the server ends; on a disk, they are written once the server is ready. Sets "
        "that no longer match the model or the machine are removed. Default: packed weights are not kept",
    )
    measurements: MeasurementMode = option(
        "kept",
        one_of("kept", "new", "off"),
        "measurements at start, such as costs of steps. kept: use those of an earlier start with the same model, "
        "machine and configuration, or measure and keep them in the folder of compiled kernels; new: measure again "
        "and keep; off: measure again and do not keep",
    )
    kv_type: KvTypeOption = option(
        "auto",
        one_of("auto", "fp32", "fp16", "fp8"),
        "type of the KV cache. fp32: CPU only; fp8: GPU only, half of fp16's memory, rounds each number by up to 1/16. "
        "auto: fp16 on a GPU, fp32 on a CPU",
    )
    kv_host_bytes: int | None = option(
        None,
        size(0),
        "host memory for KV blocks evicted from the GPU, so that a conversation that continues later is copied back "
        "instead of computed again; auto: half of what the plan leaves, up to 32GiB; 0: none",
    )
    kv_disk_dir: Path | None = option(
        None,
        PATH,
        "folder on disk for evicted KV blocks, so that a conversation that continues later, even after a restart, is "
        "read instead of computed again. Blocks of another model or machine are removed. Default: none",
    )
    kv_disk_bytes: int | None = option(None, size(), "most disk space for --kv_disk_dir; auto: half of the free space")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of a resolved `device`, such as "cuda:0", in the order of their layers; none for the CPU."""
        return tuple(self.device.split(",")) if self.device.startswith("cuda") else ()

    @property
    def vram_limits(self) -> tuple[int | None, ...]:
        """The limit of each of `gpus`; None: its free memory."""
        limits = self.vram_limit or (None,)
        return limits * len(self.gpus) if len(limits) == 1 else limits


@dataclass(frozen=True)
class ServerConfig(_Section):
    title = "server"

    host: str = option("127.0.0.1", text("an address or host name", "ADDRESS", r"\S+"), "address to listen on")
    port: int = option(10002, whole(0, 65535), "port to listen on; 0: any free port, shown in the log")
    admin_port: int | None = option(
        None,
        whole(0, 65535),
        "separate port for metrics, debugging and health, plain HTTP without keys; only probes and Prometheus should "
        "reach it. Default: they are on the API's port",
    )
    api_key_file: Path | None = option(
        None,
        PATH,
        "file of API keys, one per line, read again when it changes; every request except /livez, /readyz, /health, "
        "/ping and the page at / then needs one. A line KEY priority=LOW..HIGH gives that key its own "
        "--client_priority. If the file vanishes, becomes empty or cannot be read, the last keys stay "
        "valid, and the log reports it; to revoke every key, replace them with an unused one",
    )
    tls_cert_file: Path | None = option(
        None, PATH, "certificate with its chain in PEM form, read again when it changes; the API then uses HTTPS"
    )
    tls_key_file: Path | None = option(None, PATH, "the certificate's private key in PEM form")
    allowed_hosts: tuple[str, ...] = option(
        (),
        text(
            "a host name without port such as chat.example.org, or *.example.org, or *",
            "NAME",
            r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?",
            repeatable=True,
        ),
        "allowed name in the Host header, *.NAME for all subdomains, * for any; other requests get a 421. Repeat for "
        "several names. IP addresses, localhost and container names of the machine, such as host.docker.internal, are "
        "always allowed. "
        "Default: the value of --host; any with --api_key_file, or if the server listens on all addresses",
    )
    cors_origins: tuple[str, ...] = option(
        (),
        text(
            "an origin such as https://chat.example.org, or *",
            "ORIGIN",
            r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+",
            repeatable=True,
        ),
        "web origin whose pages may call the API from a browser, * for any; others get a 403. Repeat for several "
        "origins. Default: only the page at /",
    )
    root_path: str | None = option(
        None,
        text("a path that begins with / and does not end with it", "PATH", r"(/[\w.~-]+)+"),
        "path prefix of this server behind a proxy; requests are accepted with and without it",
    )
    request_timeout_s: float = option(0.0, seconds(), "longest total time of a request; 0: no limit")
    drain_timeout_s: float = option(60.0, seconds(), "longest wait for running requests when the server stops")
    max_body_bytes: int | None = option(
        None,
        whole(1024, auto=True),
        "largest request body; a larger one gets a 413; auto: 32 bytes per token of context, at least 1 MiB",
    )
    unknown_fields: UnknownFields = option(
        "ignore",
        one_of("ignore", "refuse"),
        "ignore: a request field that the server does not know has no effect, and the response header "
        "X-Ballast-Ignored lists it; refuse: such a request gets a 400",
    )
    metrics_alias: MetricsAlias = option(
        "vllm", one_of("vllm", "none"), "export the main metrics under vLLM's names too"
    )


@dataclass(frozen=True)
class LogConfig(_Section):
    title = "log"

    log_level: LogLevel = option("info", one_of("debug", "info", "warning", "error"), "lowest level that is logged")
    log_format: LogFormat = option(
        "text", one_of("text", "json"), "log format, one line per event: text for people, json for machines"
    )


@dataclass(frozen=True)
class TracingConfig(_Section):
    title = "tracing"

    otlp_endpoint: str | None = option(
        None,
        text("an http or https URL without query", "URL", r"https?://[^\s?#]+"),
        "URL of an OpenTelemetry collector for spans of requests (OTLP over HTTP as JSON, usually port 4318); "
        "/v1/traces is appended. Spans contain times, counts and names, never text. Default: no tracing",
    )
    otlp_service_name: str = option(
        "ballast", text("a name", "NAME", r"\S(.*\S)?"), "the name of this service in traces"
    )
    trace_share: float = option(
        1.0,
        fraction(),
        "fraction of requests to trace, 0 to 1, among those without a trace from the client; the others are traced if "
        "their traceparent says so",
    )


@dataclass(frozen=True)
class Config:
    """All options of `ballast serve`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    device_reason: str = ""
    """Why the device was chosen; set when the configuration is resolved."""
    device_is_open: bool = False
    """Whether device was "auto", so that the CPU may serve if a GPU cannot."""
    unused_options: tuple[str, ...] = ()
    """Options that are set but need a GPU, when device was "auto" and became the CPU."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as a row of the table OPTIONS."""

    name: str
    section: str
    """The field of Config that holds it."""
    group: str
    default: Any
    kind: Kind
    help: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.name.upper()


SECTIONS: Mapping[str, type[_Section]] = {
    "model": ModelConfig,
    "scheduling": SchedulingConfig,
    "machine": MachineConfig,
    "server": ServerConfig,
    "log": LogConfig,
    "tracing": TracingConfig,
}

OPTIONS = tuple(
    Option(item.name, name, section.title, item.default, item.metadata["kind"], item.metadata["help"])
    for name, section in SECTIONS.items()
    for item in dataclasses.fields(section)
)


def read_config(*sources: Mapping[str, Any]) -> Config:
    """The configuration from `sources`, which map option names to text; the first source with an option wins.

    Values of repeatable options are lists, or text separated by commas. Values of flags may be bool. Raises
    ConfigError.
    """
    values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for opt in OPTIONS:
        given = next((source[opt.name] for source in sources if opt.name in source), None)
        if given is not None:
            values[opt.section][opt.name] = _parse(opt, given)
    sections: dict[str, Any] = {name: section(**values[name]) for name, section in SECTIONS.items()}
    return Config(**sections)


def _parse(opt: Option, given: Any) -> Any:
    try:
        if opt.kind.repeatable:
            items = [item.strip() for item in given.split(",")] if isinstance(given, str) else given
            return tuple(opt.kind.parse(item) for item in items)
        if opt.kind.listed and isinstance(given, list | tuple):
            given = ",".join(map(str, given))
        value = given if isinstance(given, bool) else opt.kind.parse(given)
        if opt.kind.listed and not opt.kind.accepts(value):
            raise ValueError  # here, for a message with the list as it was given
        return value
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(opt.name, given, f"must be {opt.kind.allowed}") from None


QUEUE_OPTIONS = frozenset({"max_queue", "max_queue_tokens", "max_queue_wait_s", "queue_policy", "client_priority"})
"""Options that have no effect with a single client."""
