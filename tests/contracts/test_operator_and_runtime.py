"""The operator's assumptions about the runtime: arguments, pages on both ports, and exit codes."""

import inspect
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from builders import pod, service

from ballast import errors
from ballast.cli import main
from ballast.config.options import OPTIONS, read_config
from ballast.config.resolve import resolve
from ballast.config.sources import OTHER_VARIABLES, options_in_environment
from ballast.host.gpu import why_unusable
from ballast_operator.api.engine import FILE_ARGUMENTS, RESERVED_ARGUMENTS
from ballast_operator.api.inference_service import SpecError
from ballast_operator.child_options import ChildOptions
from ballast_operator.control.reporting.exit_reasons import REASONS
from ballast_operator.control.reporting.findings import NO_GPU_SEEN
from ballast_operator.control.reporting.numa_findings import judge_pinning, read_placement
from ballast_operator.control.reporting.status import read_effective
from ballast_operator.resources.command import engine_options
from ballast_operator.resources.pod import Attempt, build_pod
from devkit.servers.process import ServerProcess

GOLDEN = sorted((Path(__file__).parents[1] / "operator/golden").glob("*.yaml"))
FLAGS = {option.name for option in OPTIONS if option.kind.flag}


def given(words):
    """Option names and values, as the command line parses them."""
    options, rest = {}, list(words[1:] if words[1].startswith("--") else words[2:])  # a model name comes first
    while rest:
        name = rest.pop(0).removeprefix("--")
        options[name] = True if name in FLAGS else rest.pop(0)
    return {name: [value] if name == "served_model_name" else value for name, value in options.items()}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_runtime_knows_every_argument_that_the_operator_writes(golden):
    pods = [body for body in yaml.safe_load_all(golden.read_text()) if body["kind"] == "Pod"]
    assert pods
    for body in pods:
        (engine,) = body["spec"]["containers"]
        options = given(engine["args"])
        assert set(options) <= {option.name for option in OPTIONS}
        mounted = {mount["mountPath"] for mount in engine["volumeMounts"]}
        paths = ("gguf_path", "model_path", "optimize_config_path", "packed_dir", "kv_disk_dir", "api_key_file")
        for path in paths:
            assert path not in options or any(options[path].startswith(mount) for mount in mounted)
        resolve(read_config({name: v for name, v in options.items() if name not in paths}, {}), default_threads=1)


def test_users_cannot_set_values_that_the_operator_sets_or_needs():
    free = {
        "numa",  # off if two pods share a kubelet's CPUs
        "device",  # the operator lets the engine choose the device; the user may override it
        "served_model_name",  # repeatable: an additional name removes nothing
    }
    probes_meet = {"tls_cert_file", "tls_key_file", "root_path", "config"}
    assert set(RESERVED_ARGUMENTS) == set(engine_options(service().spec)) - free | {"no_force_think"} | probes_meet


@pytest.mark.parametrize("name", RESERVED_ARGUMENTS)
def test_reserved_arguments_exist_in_the_runtime_and_are_rejected(name, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert f"--{name}" in capsys.readouterr().out.replace(",", " ").split()
    for word in (f"--{name}", f"--{name}=x", f"--{name.replace('_', '-')}", f"--{name.replace('_', '-')}=x"):
        with pytest.raises(SpecError, match=f"must not set --{name}:"):
            service(engine={"extraArgs": [word]})
    for word in (f"--{name}s", name, f"--max_queue=--{name}"):
        assert service(engine={"extraArgs": [word]}).spec.engine.extra_args == [word]


def test_abbreviations_of_them_are_refused_and_no_other_option_is():
    with pytest.raises(SpecError, match="must not set --cache_lens:"):
        service(engine={"extraArgs": ["--cache_len", "4096"]})
    for option in OPTIONS:
        if option.name not in RESERVED_ARGUMENTS and option.name not in FILE_ARGUMENTS:
            assert service(engine={"extraArgs": [f"--{option.name}"]})


def test_every_file_option_is_reserved_or_limited_to_the_model():
    files = {option.name for option in OPTIONS if re.search(r"\b(path|file|folder)\b", option.kind.allowed)}
    assert "chat_template" in files
    assert files - set(RESERVED_ARGUMENTS) == set(FILE_ARGUMENTS)


@pytest.mark.parametrize("name", FILE_ARGUMENTS)
@pytest.mark.parametrize(("value", "taken"), [("/models/a/b", True), ("a", True), ("/etc/b", False), ("a/b", False)])
def test_files_are_read_only_below_the_models_directory(name, value, taken):
    for spelt in (name, name.replace("_", "-")):
        for words in ([f"--{spelt}", value], [f"--{spelt}={value}"], ["--max_queue", "8", f"--{spelt}={value}"]):
            if taken:
                assert service(engine={"extraArgs": words}).spec.engine.extra_args == words
                continue
            with pytest.raises(SpecError, match="must not read files outside /models"):
                service(engine={"extraArgs": words})


def test_exit_codes_mean_the_same():
    codes = {
        "ConfigInvalid": errors.ConfigError,
        "ModelUnusable": errors.ModelError,
        "OutOfMemory": errors.OutOfMemoryError,
        "EngineFault": errors.EngineDeadError,
    }
    assert {code: name for name, kind in codes.items() for code in [kind.exit_code]} == REASONS


def test_the_operator_recognises_the_error_of_an_engine_without_its_gpu():
    assert NO_GPU_SEEN in inspect.getsource(why_unusable)


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_running_runtime_answers_every_question_of_the_operator(tmp_path, capsys):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    sizes = ("--cache_lens", "4096", "--max_new_tokens", "128", "--cpu_threads", "1")
    with ServerProcess(*sizes, "--admin_port", "0", "--api_key_file", str(keys)) as server:
        for port in (server.port, server.admin_port):
            assert get(port, "/readyz") == (200, {"status": "ready"})
            assert get(port, "/livez")[0] == 200
        report, state = (get(server.admin_port, f"/debug/{name}")[1] for name in ("numa", "state"))
        assert get(server.port, "/debug/numa")[0] in (401, 404)
    assert read_placement(pod(), report).cpus == report["cpus"]
    assert judge_pinning(service().spec, pod(), report).pinned is not None
    requested = service(engine={"maxNewTokens": 128, "cacheLens": 4096})
    effective = read_effective(requested, state)
    assert effective.kv_cache_tokens == 4096
    assert effective.planned_memory == f"{-(-state['planned_bytes']['host'] // 2**20)}Mi"
    assert effective.planned_gpu_memory is None
    assert main(["plan", "--json", *sizes]) == 0
    assert json.loads(capsys.readouterr().out)["needed_bytes"] == state["planned_bytes"]["host"]


def test_a_failed_start_reports_its_reason_by_exit_code():
    server = ServerProcess("--cache_lens", "1", until_ready=False)
    with pytest.raises(Exception, match="cache_lens"), server:
        pass
    assert server.process.returncode == errors.ConfigError.exit_code


def test_a_secret_of_variables_cannot_override_the_operators_variables():
    """env is evaluated before envFrom, and an empty variable sets no option of the server."""
    requested = service(envFrom=[{"secretRef": {"name": "more"}}])
    (engine,) = build_pod(requested, ChildOptions(), Attempt(0))["spec"]["containers"]
    everything = {option.variable: "7" for option in OPTIONS} | {"BALLAST_CONFIG": "/evil.yaml"}
    environment = everything | {entry["name"]: entry["value"] for entry in engine["env"]}
    set_by_secret = options_in_environment(environment).keys()
    assert not set_by_secret & set(RESERVED_ARGUMENTS)
    assert environment["BALLAST_CONFIG"] == ""
    own = {entry["name"] for entry in engine["env"] if entry["name"].startswith("BALLAST_")}
    assert own <= {option.variable for option in OPTIONS} | OTHER_VARIABLES, "the server would reject unknown variables"
