"""Every option of `ballast serve`, defined once. The command line, the environment variables and the documentation are
generated from the dataclass fields below.

None means "auto" or "not given"; `resolve` replaces it. Values are checked on construction, so each value of a `Config`
is in range.
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
    fraction,
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
        "local directory with config.json and the tokenizer files; without it they come from the GGUF",
    )
    gguf_path: Path | None = option(
        None,
        PATH,
        "a GGUF file, or a directory that holds one model's shards; without it the built-in tiny model is served",
    )
    optimize_config_path: Path | None = option(
        None, PATH, "YAML file of placement rules for routed experts; without it the plan decides"
    )
    served_model_name: tuple[str, ...] = option(
        (),
        text("a name", "NAME", r"\S(.*\S)?", repeatable=True),
        "name in replies and in /v1/models; repeat it for more than one. Default: the model's own name",
    )
    strict_model_name: bool = option(False, SWITCH, "refuse requests that name another model")
    chat_template: str | None = option(
        None,
        text("a template's name or a file", "TEMPLATE"),
        f"{', '.join(RELEASES)}, or a Jinja file; default: the model's own, in a form of Ballast's where it is one "
        "that was published and is known",
    )
    trust_request_chat_template: bool = option(
        False,
        SWITCH,
        "let requests bring a Jinja template of their own in chat_template; it runs in a guarded process, as those of "
        "model files do",
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
        "where a chat reply's reasoning goes; none: it stays in the content, tags and all",
    )


@dataclass(frozen=True)
class SchedulingConfig(_Section):
    title = "scheduling and KV cache"

    max_new_tokens: int | None = option(
        None,
        whole(1, MAX_TOKENS, auto=True),
        "most tokens one request may generate; its default as well; auto: as many as cache_lens holds for a full "
        "batch, up to the model's context and 32768",
    )
    cache_lens: int | None = option(
        None,
        whole(1, MAX_TOKENS, auto=True),
        "KV tokens that all requests share; must be greater than max_batch_size * max_new_tokens; auto: by the memory "
        "that is there, for a full batch of replies of 8192 tokens and up to the model's context",
    )
    max_batch_size: int = option(4, whole(1, 4096), "most requests in one step")
    chunk_size: int = option(256, whole(1, MAX_TOKENS), "most tokens in a step in which requests decode")
    prefill_chunk_size: int | None = option(
        None,
        whole(1, MAX_TOKENS, auto=True),
        "most prompt tokens in a step in which no request decodes, and in a pass that streams experts through a GPU; "
        "auto: chunk_size, or with streaming up to 16384, as GPU memory allows",
    )
    max_stall_ms: int | None = option(
        None,
        whole(0, 3_600_000, auto=True),
        "most milliseconds that prompts may add to a step in which requests decode, by measured costs; auto: the "
        "duration of the step without prompts if a GPU streams experts, otherwise 3 times that; if more prompts wait "
        "than requests decode, the limit grows by their ratio",
    )
    block_tokens: int = option(32, one_of(16, 32, 64), "tokens in one KV block; smaller shares more of a prefix")
    max_queue: int = option(256, whole(1, 1_000_000), "most requests that wait; more are answered with 429")
    max_queue_tokens: int | None = option(
        None,
        whole(1, 2**40, auto=True),
        "most prompt tokens that wait; more are answered with 429, unless nothing else waits; auto: 8 * cache_lens",
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
        "priorities that clients may ask for in the field priority; lower ones are served first, and a request that "
        "asks for none gets the one nearest to 0. A line of --api_key_file may give its key a range of its own. "
        "Default: none, the field is ignored",
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
        "threads that compute; auto: one for each physical core this process may use, within its quota of CPU time",
    )
    numa: NumaMode = option(
        "auto",
        one_of("auto", "single", "off"),
        "auto: bind threads to cores of their own, spread over the NUMA nodes; single: keep them and the weights on "
        "one node, the GPU's before others, where it has enough cores, else as auto; off: let the system move them",
    )
    activation_bytes: int | None = option(
        None,
        whole(1, 2, auto=True),
        "bytes an activation is rounded to where weights are quantised; 1 is faster, 2 more exact; auto: 1 for weights "
        "of 4.5 bits or less, whose own error hides it, else 2",
    )
    device: str = option(
        "auto",
        text("auto, cpu, cuda or cuda:N", "auto|cpu|cuda:N", r"auto|cpu|cuda(:\d{1,2})?"),
        "where to compute; cuda: attention and shared weights on a GPU, routed experts on the CPU; auto: cuda where "
        "a GPU can be used, else cpu",
    )
    vram_limit: int | None = option(
        None,
        size(),
        "most memory to take on the GPU; auto: what is free there. `ballast plan` needs no GPU where it is given",
    )
    stream_from_tokens: int | None = option(
        None,
        whole(0, MAX_TOKENS, auto=True),
        "fewest tokens of a step whose routed experts are streamed through the GPU instead of computed by the CPU; "
        "auto: as many as pays, measured at start; 0: never",
    )
    gpu_experts: int | None = option(
        None,
        whole(0, auto=True),
        "routed experts, over all layers, that are kept in the GPU's memory as well and computed there; auto: as many "
        "as fit after everything else; 0: none",
    )
    expert_profile: Path | None = option(
        None,
        PATH,
        "file that `ballast profile` wrote: the experts used most go to the GPU's memory first; without it they go "
        "layer after layer",
    )
    pcie_share: float | None = option(
        None,
        share(),
        "share of a decode step's experts in host memory that the GPU reads across PCIe while the CPU computes the "
        "others; auto: the fastest, measured at start; 0: none",
    )
    packed_dir: Path | None = option(
        None,
        PATH,
        "folder that keeps the weights as the CPU's kernels take them, so that the next start packs nothing. In memory "
        "(a tmpfs) they are used where they are, and stay when the server ends; on a disk they are written once the "
        "server is ready. What a change of the model or of the machine makes stale is removed. Default: none are kept",
    )
    measurements: MeasurementMode = option(
        "kept",
        one_of("kept", "new", "off"),
        "speeds that a start measures, such as costs of steps. kept: use those of an earlier start of this model with "
        "this machine and configuration, else measure and keep them in the folder of compiled kernels; new: measure "
        "again and keep them; off: measure again and keep nothing",
    )
    kv_host_bytes: int | None = option(
        None,
        size(0),
        "host memory for the KV cache's blocks that a GPU's memory has given up, so that a conversation that comes "
        "back is copied instead of computed; auto: half of what the plan leaves, up to 32GiB; 0: none",
    )
    kv_disk_dir: Path | None = option(
        None,
        PATH,
        "folder on disk that keeps the KV cache's blocks for when the cache has given them up, so that a conversation "
        "that comes back, even after a restart, is read instead of computed. Blocks of another model or machine are "
        "removed. Default: none are kept",
    )
    kv_disk_bytes: int | None = option(
        None, size(), "most disk that --kv_disk_dir takes; auto: half of what is free there"
    )


@dataclass(frozen=True)
class ServerConfig(_Section):
    title = "server"

    host: str = option("127.0.0.1", text("an address or host name", "ADDRESS", r"\S+"), "address to listen on")
    port: int = option(10002, whole(0, 65535), "port to listen on; 0: any free one, which the log names")
    admin_port: int | None = option(
        None,
        whole(0, 65535),
        "port of their own for metrics, debugging and health, plain HTTP without keys; keep it where only probes and "
        "Prometheus reach it. Default: they are on the API's port",
    )
    api_key_file: Path | None = option(
        None,
        PATH,
        "file of API keys, one per line, read again when it changes; every request but /livez, /readyz, /health, /ping "
        "and the page at / then needs one. A line KEY priority=LOW..HIGH gives that key a --client_priority of its "
        "own. A file that vanishes, is emptied or cannot be read leaves the last keys in force, and the log says so; "
        "to revoke every key, replace them by an unused one",
    )
    tls_cert_file: Path | None = option(
        None, PATH, "certificate with its chain in PEM form, read again when it is renewed; the API then speaks HTTPS"
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
        "name under which the API is asked for, *.NAME for all below it, * for any; a request whose Host header has "
        "another is answered with 421. Repeat it for more than one; IP addresses, localhost and names that containers "
        "have for their machine, such as host.docker.internal, need not be named. "
        "Default: what --host says; any with --api_key_file, or if it listens on all addresses",
    )
    cors_origins: tuple[str, ...] = option(
        (),
        text(
            "an origin such as https://chat.example.org, or *",
            "ORIGIN",
            r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+",
            repeatable=True,
        ),
        "web page that may call the API from a browser, * for any; others are answered with 403. Repeat it for more "
        "than one. Default: none but the page at /",
    )
    root_path: str | None = option(
        None,
        text("a path that begins with / and does not end with it", "PATH", r"(/[\w.~-]+)+"),
        "prefix under which a proxy offers this server; requests are understood with it and without",
    )
    request_timeout_s: float = option(0.0, seconds(), "longest a request may take in all; 0: no limit")
    drain_timeout_s: float = option(60.0, seconds(), "longest wait for running requests when told to stop")
    max_body_bytes: int | None = option(
        None,
        whole(1024, auto=True),
        "largest request body, a larger one is answered with 413; auto: 32 a token of context, at least 1 MiB",
    )
    unknown_fields: UnknownFields = option(
        "ignore",
        one_of("ignore", "refuse"),
        "ignore: a field of a request that the server does not know has no effect, and the reply's header "
        "X-Ballast-Ignored names it; refuse: such a request is answered with 400",
    )
    metrics_alias: MetricsAlias = option(
        "vllm", one_of("vllm", "none"), "offer the main metrics under vLLM's names as well"
    )


@dataclass(frozen=True)
class LogConfig(_Section):
    title = "log"

    log_level: LogLevel = option("info", one_of("debug", "info", "warning", "error"), "least level that is logged")
    log_format: LogFormat = option("text", one_of("text", "json"), "one line an event, for people or for machines")


@dataclass(frozen=True)
class TracingConfig(_Section):
    title = "tracing"

    otlp_endpoint: str | None = option(
        None,
        text("an http or https URL without query", "URL", r"https?://[^\s?#]+"),
        "OpenTelemetry collector to which spans of requests go, by OTLP over HTTP as JSON, mostly on port 4318; "
        "/v1/traces is added. Spans hold times, counts and names, never text. Default: there is no tracing",
    )
    otlp_service_name: str = option(
        "ballast", text("a name", "NAME", r"\S(.*\S)?"), "the name of this service in traces"
    )
    trace_share: float = option(
        1.0,
        fraction(),
        "share of the requests that are traced, 0 to 1, among those that come without a trace of the client's; the "
        "others are traced if their traceparent says so",
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
        return given if isinstance(given, bool) else opt.kind.parse(given)
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(opt.name, given, f"must be {opt.kind.allowed}") from None


OF_A_QUEUE = frozenset({"max_queue", "max_queue_tokens", "max_queue_wait_s", "queue_policy", "client_priority"})
"""Options that have no meaning where nobody else asks."""
