"""Options: one table, three sources, and errors that list the allowed values."""

import dataclasses
import re

import pytest

from ballast.config import resolve as resolve_module
from ballast.config.options import OPTIONS, SECTIONS, Config, ModelConfig, SchedulingConfig, ServerConfig, read_config
from ballast.config.resolve import resolve
from ballast.config.sources import options_in_environment, options_in_file, unknown_variables
from ballast.errors import ConfigError
from ballast.host import gpu

SET_LATER_OR_NEVER = ["admin_port", "api_key_file", "tls_cert_file", "tls_key_file", "root_path", "max_body_bytes"]


def resolved(**arguments):
    return resolve(read_config({name: str(value) for name, value in arguments.items()}, {}), default_threads=6)


def test_the_defaults_match_the_contract():
    config = read_config({}, {})
    assert config == Config()
    assert config.scheduling == SchedulingConfig(
        max_new_tokens=None,
        cache_lens=None,
        max_batch_size=4,
        chunk_size=256,
        prefill_chunk_size=None,
        max_queue=256,
        backend_type="balance_serve",
    )
    assert (config.server.host, config.server.port) == ("127.0.0.1", 10002)
    assert (config.server.request_timeout_s, config.server.drain_timeout_s) == (0, 60)
    assert config.server.metrics_alias == "vllm"
    assert config.model.force_think is False


def test_every_default_is_itself_allowed():
    for opt in OPTIONS:
        assert opt.default in (None, ()) or opt.kind.accepts(opt.default), opt.name


def test_every_option_can_be_set_by_the_environment():
    values = {
        "PATH": "/tmp",
        "N": "16",
        "auto|N": "300",
        "auto|S": "0.5",
        "S": "7.5",
        "NAME": "x",
        "TEMPLATE": "x",
        "ADDRESS": "::1",
        "ORIGIN": "*",
        "URL": "http://127.0.0.1:4318",
        "SHARE": "0.5",
        "LOW..HIGH": "-5..5",
        "today|DATE": "2025-08-06",
        "": "true",
    }
    for opt in OPTIONS:
        text = values.get(opt.kind.metavar) or str(opt.kind.metavar.split("|")[-1])
        own = {
            "max_body_bytes": "4096",
            "device": "cpu",
            "vram_limit": "4096",
            "device_split": "1",
            "activation_bytes": "1",
        }
        own |= {"kv_host_bytes": "4096", "kv_disk_bytes": "4096"}
        text = own.get(opt.name, text)
        section = getattr(read_config(options_in_environment({opt.variable: text})), opt.section)
        shown = "false" if opt.name == "gpu_experts_update" else text
        assert str(getattr(section, opt.name)).lower() in (shown, f"('{text}',)", f"({text},)"), opt.name


def test_the_command_line_wins_over_the_environment():
    environment = {"BALLAST_PORT": "1", "BALLAST_CHUNK_SIZE": "64", "BALLAST_FORCE_THINK": "true"}
    config = read_config({"port": "2", "force_think": False}, options_in_environment(environment))
    assert (config.server.port, config.scheduling.chunk_size, config.model.force_think) == (2, 64, False)


def test_an_empty_variable_counts_as_not_set():
    assert read_config(options_in_environment({"BALLAST_PORT": "", "BALLAST_GGUF_PATH": ""})) == Config()


@pytest.mark.parametrize(
    "variables",
    [
        {"BALLAST_PORT": "tcp://10.43.0.7:10002", "BALLAST_SERVICE_HOST": "10.43.0.7", "BALLAST_SERVICE_PORT": "10002"},
        {"BALLAST_SERVICE_PORT_HTTP": "80", "BALLAST_PORT_10002_TCP": "tcp://1.2.3.4:5"},
        {"BALLAST_PORT_10002_TCP_ADDR": "1.2.3.4", "BALLAST_PORT_10002_TCP_PROTO": "tcp"},
        {"BALLAST_ADMIN_PORT": "tcp://10.43.0.8:10003", "BALLAST_ADMIN_SERVICE_HOST": "10.43.0.8"},
        {"BALLAST_PORT": "udp://[fd00::7]:53", "BALLAST_PORT_53_UDP": "udp://[fd00::7]:53"},
        {"BALLAST_SERVICE_PORT_HTTP_2": "80", "BALLAST_V2_SERVICE_PORT": "80", "BALLAST_V2_PORT_80_TCP_PORT": "80"},
        {"BALLAST_CPU_ISA": "avx2", "PORT": "5", "BALLAST_CONFIG": "file"},
    ],
)
def test_kubernetes_variables_for_services_set_nothing(variables):
    assert options_in_environment(variables) == {}
    assert unknown_variables(variables) == {}


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("BALLAST_MAX_BATCHSIZE", "did you mean BALLAST_MAX_BATCH_SIZE?"),
        ("BALLAST_API_KEYFILE", "did you mean BALLAST_API_KEY_FILE?"),
        ("BALLAST_CPU_ISAS", "did you mean BALLAST_CPU_ISA?"),
        ("BALLAST_XYZZY", "`ballast serve --help` lists the options"),
    ],
)
def test_an_unknown_variable_is_ignored_and_reported(variable, hint):
    environment = {variable: "secret", "BALLAST_PORT": "5"}
    assert options_in_environment(environment) == {"port": "5"}
    assert unknown_variables(environment) == {variable: f"no such variable; {hint}"}


def file_of(tmp_path, content):
    path = tmp_path / "ballast.yaml"
    path.write_text(content)
    return path


def test_a_file_sets_options_with_the_lowest_precedence(tmp_path):
    content = """
        port: 1
        chunk-size: 64
        drain_timeout_s: 7.5
        force_think: true
        strict_model_name: "yes"
        served_model_name: [a, 5]
        cors_origins: https://a.example.org
        gguf_path:
        prefill_chunk_size: auto
    """
    in_file = options_in_file(file_of(tmp_path, content))
    config = read_config({"port": "3"}, {"port": "2", "chunk_size": "32"}, in_file)
    assert (config.server.port, config.scheduling.chunk_size, config.server.drain_timeout_s) == (3, 32, 7.5)
    assert config.model == ModelConfig(force_think=True, strict_model_name=True, served_model_name=("a", "5"))
    assert config.server.cors_origins == ("https://a.example.org",)
    assert read_config({}, {}, in_file).server.port == 1


@pytest.mark.parametrize("value", ["today", "2025-08-06", "2024-02-29"])
def test_a_date_is_one_of_the_calendar(tmp_path, value):
    assert read_config({"prompt_date": value}, {}).model.prompt_date == value
    in_file = options_in_file(file_of(tmp_path, f"prompt_date: {value}"))
    assert read_config({}, {}, in_file).model.prompt_date == value


@pytest.mark.parametrize("value", ["", "tomorrow", "2025-02-29", "2025-8-6", "20250806", "2025-08-06T00"])
def test_another_date_is_refused(value):
    with pytest.raises(ConfigError, match="must be today, or a date as YYYY-MM-DD"):
        read_config({"prompt_date": value}, {})


def test_every_option_can_be_set_by_a_file(tmp_path):
    for opt in OPTIONS:
        assert opt.name in options_in_file(file_of(tmp_path, f"{opt.name}: 1"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("prot: 1", "prot: no such key; did you mean port?"),
        ("xyzzy: 1", "xyzzy: no such key; `ballast serve --help` lists the options"),
        ("port: 1\nport: 2", "port: is set twice"),
        ("chunk_size: 1\nchunk-size: 2", "chunk-size: is set twice"),
        ("port: [1]", "port: \\['1'\\] must be a whole number"),
        ("- port", "expected options as NAME: VALUE"),
        ("port: {", "is not YAML"),
        ("served_model_name: [a, [b]]", "served_model_name: \\['a', \\['b'\\]\\] must be a name"),
        ("? [a]\n: 1", "line 1: a key that is no text"),
        ("#" * (1 << 18) + "#", "larger than 262144 bytes"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name(tmp_path, content, sentence):
    with pytest.raises(ConfigError, match=f"config={tmp_path}/ballast.yaml: {sentence}"):
        options_in_file(file_of(tmp_path, content))


def test_a_value_in_a_file_is_checked_like_any_other(tmp_path):
    for value in ("1.5", "true", "0x10", "off", "22:22"):
        with pytest.raises(ConfigError, match=rf"port={value}: must be a whole number"):
            read_config(options_in_file(file_of(tmp_path, f"port: {value}")))
    assert options_in_file(file_of(tmp_path, "# nothing\n")) == {}


SCALARS = (
    *("off", "on", "no", "yes", "n", "y", "No", "TRUE", "1.10", "0123", "0o17", "0x1F", "22:22", "1_000", "1e3", "1.0"),
    *(".inf", ".NaN", "2024-01-01", "2024-01-01 10:00:00", "+5", "=", "1:30:00", "0b101", "-1", "007"),
)
"""Plain texts that YAML 1.1 parses as booleans, numbers or dates, but that users mean literally."""


@pytest.mark.parametrize("scalar", SCALARS)
def test_values_are_parsed_equally_in_files_environment_and_command_line(tmp_path, scalar):
    for opt in OPTIONS:
        if opt.kind.flag:
            continue
        on_the_command_line = {opt.name: [scalar] if opt.kind.repeatable else scalar}
        sources = [
            on_the_command_line,
            options_in_environment({opt.variable: scalar}),
            options_in_file(file_of(tmp_path, f"{opt.name}: {scalar}")),
            options_in_file(file_of(tmp_path, f"{opt.name}: '{scalar}'")),
        ]
        if opt.kind.repeatable:
            sources.append(options_in_file(file_of(tmp_path, f"{opt.name}: [{scalar}]")))
        outcomes = []
        for source in sources:
            try:
                outcomes.append(read_config(source))
            except ConfigError as error:
                outcomes.append(str(error))
        as_text = [repr(outcome) for outcome in outcomes]  # a value may be NaN, which equals nothing
        if all(isinstance(outcome, Config) for outcome in outcomes):
            assert len(set(as_text)) == 1, (opt.name, outcomes)
        else:
            assert not any(isinstance(outcome, Config) for outcome in outcomes), (opt.name, outcomes)


@pytest.mark.parametrize(("word", "is_on"), [("on", True), ("yes", True), ("1", True), ("off", False), ("no", False)])
def test_flags_accept_the_same_values_everywhere(tmp_path, word, is_on):
    for source in (
        options_in_environment({"BALLAST_FORCE_THINK": word}),
        options_in_file(file_of(tmp_path, f"force_think: {word}")),
        options_in_file(file_of(tmp_path, f"force_think: {word.upper()}")),
    ):
        assert read_config(source).model.force_think is is_on


def test_scalars_of_a_file_are_kept_as_written(tmp_path):
    content = "numa: off\notlp_service_name: 1.10\nserved_model_name: [0123, 22:22, on, 2024-01-01, !!str 5]\nport: ~\n"
    config = read_config(options_in_file(file_of(tmp_path, content)))
    assert config.machine.numa == "off"
    assert config.tracing.otlp_service_name == "1.10"
    assert config.model.served_model_name == ("0123", "22:22", "on", "2024-01-01", "5")
    assert config.server.port == Config().server.port


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_may_have_a_byte_order_mark_and_windows_line_endings(tmp_path, encoding):
    path = tmp_path / "ballast.yaml"
    path.write_bytes("port: 5\r\nhost: ::1\r\n".encode(encoding))
    config = read_config(options_in_file(path))
    assert (config.server.port, config.server.host) == (5, "::1")


@pytest.mark.parametrize("content", [b"host: \xff\xfe", b"host: a\0b", b"\0", b'host: "a\\0b"'])
def test_a_file_that_is_not_text_is_rejected(tmp_path, content):
    path = tmp_path / "ballast.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config=.*ballast\.yaml: "):
        options_in_file(path)


def test_a_cache_without_a_block_for_every_request_is_refused():
    with pytest.raises(ConfigError, match=r"cache_lens=10: holds no block of 32 tokens .* raise it to 128 or more"):
        resolve(read_config({"cache_lens": "10"}), 2)
    assert resolve(read_config({"cache_lens": "32", "max_batch_size": "1"}), 2).scheduling.cache_lens == 32


def test_names_may_be_repeated_or_separated_by_commas():
    assert read_config({"served_model_name": ["a", "b"]}, {}).model.served_model_name == ("a", "b")
    assert read_config(options_in_environment({"BALLAST_SERVED_MODEL_NAME": "a, b"})).model.served_model_name == (
        "a",
        "b",
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("device", "cuda:0,cuda:00", "auto, cpu, cuda or cuda:N, several GPUs separated by commas"),
        ("port", "http", "a whole number, at least 0 and at most 65535"),
        ("port", "70000", "a whole number, at least 0 and at most 65535"),
        ("max_batch_size", "0", "a whole number, at least 1"),
        ("max_batch_size", "1.5", "a whole number, at least 1"),
        ("prefill_chunk_size", "some", "auto, or a whole number"),
        ("block_tokens", "24", "one of 16, 32, 64"),
        ("backend_type", "sglang", "one of balance_serve, ktransformers"),
        ("drain_timeout_s", "-1", "a number of seconds, at least 0"),
        ("drain_timeout_s", "nan", "a number of seconds, at least 0"),
        ("force_think", "maybe", "true or false"),
        ("max_queue", "3000000000", "at most 1000000"),
        ("cpu_threads", "2000", "at most 1024"),
        ("cache_lens", "2147483647", "at most 1073741824"),
        ("gguf_path", "", "a path that is not empty"),
        ("served_model_name", [" "], "a name"),
    ],
)
def test_an_invalid_value_is_rejected_with_key_value_and_allowed_values(name, value, allowed):
    with pytest.raises(ConfigError) as caught:
        read_config({name: value}, {})
    assert caught.value.key == name
    assert allowed in str(caught.value)
    shown = value[0] if isinstance(value, list) else value.removesuffix(".5")
    assert shown in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("served_model_name", ["a\x1b[2J"], "a name"),
        ("vram_limit", f"{'9' * 400}GiB", "a size such as 24GiB"),
        ("vram_limit", "9" * 400, "a size such as 24GiB"),
        ("gpu_experts", "9" * 400, "a whole number"),
        ("max_body_bytes", "9" * 5000, "a whole number"),
        ("max_queue_wait_s", "auto", "a number of seconds, at least 0 and at most 1000000000; 0: no limit"),
        ("request_timeout_s", "1e300", "a number of seconds, at least 0 and at most 1000000000"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_value_beyond_all_bounds_is_refused_in_a_short_message(name, value, allowed):
    with pytest.raises(ConfigError) as caught:
        read_config({name: value}, {})
    assert allowed in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_config_made_in_code_is_checked_too():
    with pytest.raises(ConfigError, match="port=-1: must be"):
        ServerConfig(port=-1)


@pytest.mark.parametrize(("batch", "new", "cache"), [(4, 1024, 4096), (4, 1024, 1), (1, 1, 1), (8, 4096, 32768)])
def test_a_cache_too_small_for_a_full_batch_is_rejected_with_the_smallest_valid_one(batch, new, cache):
    with pytest.raises(ConfigError) as caught:
        resolved(max_batch_size=batch, max_new_tokens=new, cache_lens=cache)
    message = str(caught.value)
    assert message.startswith(f"cache_lens={cache}: ")
    assert f"max_batch_size * max_new_tokens = {batch} * {new} = {batch * new}" in message
    assert message.endswith(f"the smallest cache_lens that passes is {batch * new + 1}")
    passes = resolved(max_batch_size=batch, max_new_tokens=new, cache_lens=batch * new + 1)
    assert passes.scheduling.cache_lens > batch * new


def test_the_cache_is_checked_before_anything_else():
    with pytest.raises(ConfigError, match="cache_lens"):
        resolved(
            cache_lens=4,
            model_path="deepseek-ai/DeepSeek-R1",
            gguf_path="/nowhere",
            chunk_size=1,
            device="cpu",
            vram_limit=1,
        )


@pytest.mark.parametrize(("batch", "new"), [(4, 2**28), (1, 2**30), (4096, 2**18)])
def test_a_reply_length_without_a_large_enough_cache_is_rejected_with_the_largest(batch, new):
    most = (2**30 - 1) // batch
    with pytest.raises(ConfigError, match=rf"max_new_tokens={new}: .* lower it to {most}, or lower max_batch_size"):
        resolved(max_batch_size=batch, max_new_tokens=new, chunk_size=4096)
    assert resolved(max_batch_size=batch, max_new_tokens=most, chunk_size=4096).scheduling.max_new_tokens == most


def test_resolving_leaves_no_auto_but_to_the_plan():
    config = resolved(cache_lens=5000, block_tokens=64)
    assert config.scheduling.cache_lens == 5000
    assert config.scheduling.prefill_chunk_size == 256
    assert (config.machine.cpu_threads, config.machine.device) == (6, "cpu")
    assert resolved(cpu_threads=3, prefill_chunk_size=512).machine.cpu_threads == 3
    for section in SECTIONS:
        values = dataclasses.asdict(getattr(config, section))
        assert [
            name
            for name, value in values.items()
            if value in (None, "auto")
            and name
            not in (
                "numa",
                "device_split",
                "vram_limit",
                "stream_from_tokens",
                "max_stall_ms",
                "expert_profile",
                "packed_dir",
                "state_snapshots",
            )
            and name not in ("kv_disk_dir", "kv_disk_bytes", "kv_type")
            and name not in ("max_new_tokens", "cache_lens", "max_queue_tokens", "activation_bytes")
        ] in (
            [],
            ["client_priority"],
            ["otlp_endpoint"],
            ["model_path", "gguf_path", "optimize_config_path", "chat_template"],
            SET_LATER_OR_NEVER,
        )


def test_the_plan_sets_a_gpus_longest_step_and_only_a_gpu_streams():
    assert resolved(device="cuda").scheduling.prefill_chunk_size is None
    assert resolved(device="cuda", prefill_chunk_size=512).scheduling.prefill_chunk_size == 512
    assert resolved(device="cuda", stream_from_tokens=0).machine.stream_from_tokens == 0
    with pytest.raises(ConfigError, match=r"stream_from_tokens=1: is about experts .* device=cpu uses no GPU"):
        resolved(device="cpu", stream_from_tokens=1)


def test_the_ktransformers_backend_is_a_batch_of_one():
    assert resolved(backend_type="ktransformers", max_batch_size=4).scheduling.max_batch_size == 1


def test_chunks_must_hold_every_decoding_request():
    with pytest.raises(ConfigError, match="chunk_size=3: must be at least max_batch_size = 4"):
        resolved(chunk_size=3)
    with pytest.raises(ConfigError, match="prefill_chunk_size=100: must be auto or at least chunk_size = 256"):
        resolved(prefill_chunk_size=100)


def test_a_hub_id_is_rejected_because_a_directory_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="model_path=deepseek-ai/DeepSeek-R1: expected a local directory"):
        resolved(model_path="deepseek-ai/DeepSeek-R1")
    with pytest.raises(ConfigError, match="expected a local directory with"):
        resolved(model_path=tmp_path / "absent" / "deeper")
    assert resolved(model_path=tmp_path).model.model_path == tmp_path


@pytest.mark.parametrize("name", ["gguf_path", "optimize_config_path"])
def test_a_missing_path_is_rejected(name, tmp_path):
    with pytest.raises(ConfigError, match=f"{name}=.*absent: no such file or directory"):
        resolved(**{name: tmp_path / "absent"})


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B-GGUF", "org/repo:Q4_K_M", "org/repo:Q4_K_M@main"])
def test_a_hub_name_as_path_is_rejected_with_the_download_command(name):
    with pytest.raises(ConfigError, match=rf"gguf_path={name}: no such file or directory; .*`ballast pull`"):
        resolved(gguf_path=name)


def test_a_certificate_requires_its_key(tmp_path):
    with pytest.raises(ConfigError, match=f"tls_cert_file={tmp_path}: needs tls_key_file as well"):
        resolved(tls_cert_file=tmp_path)
    with pytest.raises(ConfigError, match="needs tls_cert_file as well"):
        resolved(tls_key_file=tmp_path)


@pytest.mark.parametrize(
    ("no_device", "unusable", "device", "why"),
    [
        (
            "NVIDIA's driver reports: no CUDA-capable device",
            None,
            "cpu",
            "NVIDIA's driver reports: no CUDA-capable device",
        ),
        (None, None, "cuda:0", "this machine has a GPU"),
        (None, "torch is not installed", "cpu", "the GPU cannot be used: torch is not installed"),
    ],
)
def test_auto_is_the_first_gpu_where_it_can_be_used(no_device, unusable, device, why, monkeypatch):
    monkeypatch.setattr(gpu, "why_no_driver_device", lambda: no_device)
    monkeypatch.setattr(gpu, "why_unusable", lambda _: unusable)
    config = resolved(device="auto")
    assert (config.machine.device, config.device_reason) == (device, why)
    requested = resolved(device="cpu")
    assert (requested.machine.device, requested.device_reason) == ("cpu", "asked for")


def test_auto_says_how_to_use_all_gpus(monkeypatch):
    monkeypatch.setattr(gpu, "why_no_driver_device", lambda: None)
    monkeypatch.setattr(gpu, "why_unusable", lambda name: None)
    monkeypatch.setattr(gpu, "num_visible_gpus", lambda: 2)
    config = resolved(device="auto")
    assert (config.machine.gpus, config.device_reason) == (("cuda:0",), "the first of 2 GPUs; device=cuda uses all")


def test_devices_and_the_limit_of_their_memory():
    assert resolved(device="cuda").machine.device == "cuda:0"
    assert resolved(device="cuda:3", vram_limit=1 << 30).machine.device == "cuda:3"
    assert read_config({"device": "cuda", "vram_limit": "1.5GiB"}).machine.vram_limit == (3 << 29,)
    assert read_config({"device": "cuda", "vram_limit": "auto"}).machine.vram_limit is None
    with pytest.raises(ConfigError, match="device=tpu: must be auto, cpu, cuda or cuda:N"):
        resolved(device="tpu")
    with pytest.raises(ConfigError, match="vram_limit=24GB: must be auto, or a size such as 24GiB"):
        read_config({"vram_limit": "24GB"})
    for given in ("24GiB", "1.5KiB", "8", "1073741825"):
        with pytest.raises(ConfigError, match=f"vram_limit={given}: limits a GPU's memory, and device=cpu uses no GPU"):
            resolved(device="cpu", vram_limit=given)


def test_cuda_is_all_visible_gpus_and_otherwise_as_many_as_are_described(monkeypatch):
    assert resolved(device="cuda", vram_limit="1,2,3").machine.gpus == ("cuda:0", "cuda:1", "cuda:2")
    assert resolved(device="cuda", device_split="3,1").machine.gpus == ("cuda:0", "cuda:1")
    monkeypatch.setattr(resolve_module, "num_visible_gpus", lambda: 4)
    machine = resolved(device="cuda", vram_limit=1).machine
    assert machine.device == "cuda:0,cuda:1,cuda:2,cuda:3"
    assert machine.vram_limits == (1, 1, 1, 1)
    with pytest.raises(ConfigError, match=r"vram_limit=1,2: has 2 values for 4 GPUs \(cuda:0, .*\); give one"):
        resolved(device="cuda", vram_limit="1,2")


def test_listed_gpus_and_a_value_for_each(tmp_path):
    given = {"device": "cuda:2,cuda:0", "device_split": "3, 1", "vram_limit": "24GiB,40GiB"}
    machine = resolve(read_config(given), 1).machine
    assert machine.gpus == ("cuda:2", "cuda:0")
    assert machine.device_split == (3, 1)
    assert machine.vram_limits == (24 << 30, 40 << 30)
    file = tmp_path / "options.yaml"
    file.write_text("device: [cuda:2, cuda:0]\ndevice_split: [3, 1]\nvram_limit: [24GiB, 40GiB]\n")
    assert resolve(read_config(options_in_file(file)), 1).machine == machine


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"device": "cuda:0,cuda:1,cuda:0"}, "device=cuda:0,cuda:1,cuda:0: names cuda:0 twice; name each GPU once"),
        ({"device": "cuda:0,cpu"}, "device=cuda:0,cpu: must be auto, cpu, cuda or cuda:N, several GPUs separated by"),
        ({"device": "cuda:0,cuda:1", "device_split": "3"}, "device_split=3: has 1 value for 2 GPUs (cuda:0, cuda:1)"),
        ({"device": "cuda:0", "device_split": "3,1"}, "device_split=3,1: has 2 values for 1 GPU (cuda:0); give one"),
        ({"device": "cuda:0,cuda:1", "device_split": "3,0"}, "device_split=3,0: must be auto, or a whole number"),
        ({"device": "cuda:0", "vram_limit": "1GiB,auto"}, "vram_limit=1GiB,auto: must be auto, or a size"),
        (
            {"device": "cpu", "device_split": "3,1"},
            "device_split=3,1: divides layers among GPUs, and device=cpu uses no GPU; leave it",
        ),
    ],
)
def test_wrong_lists_of_gpus_are_rejected(given, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        resolve(read_config(given), 1)


def test_with_device_auto_gpu_options_are_unused_on_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "why_no_driver_device", lambda: "NVIDIA's driver has no GPU")
    set_for_gpu = {
        "vram_limit": 1 << 30,
        "stream_from_tokens": 64,
        "gpu_experts": 5,
        "expert_profile": tmp_path / "absent.json",
        "pcie_share": 0.5,
    }
    config = resolved(device="auto", **set_for_gpu)
    assert config.unused_options == tuple(set_for_gpu)
    assert config.machine == resolved(device="cpu").machine
    assert config.scheduling.prefill_chunk_size == 256


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_gpu_options_set_to_zero_are_accepted_on_any_device(device):
    config = resolved(device=device, stream_from_tokens=0, gpu_experts=0, pcie_share=0.0)
    assert config.unused_options == ()
    assert config.machine == resolved(device="cpu").machine
