"""The command line as seen by a shell: spellings, exit codes, the last line of standard error."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ballast import __version__, cli, process_exit
from ballast.errors import ConfigError, ModelError, OutOfMemoryError
from ballast.families.registry import ARCHITECTURES
from ballast.tiny import BUILT_IN
from ballast.tiny.presets import PRESETS
from ballast.weights.gguf import open_gguf
from devkit.long import if_long
from devkit.models.written import write_tiny_model
from devkit.servers import command


def ballast(*arguments, **environment):
    return command.ballast(arguments, {"PATH": "/usr/bin:/bin", **environment})


def test_help_is_quick_because_nothing_heavy_is_imported():
    code = "import sys, ballast.cli; print([n for n in ('torch', 'numpy', 'fastapi', 'gguf') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_serve_help_groups_every_option():
    shown = ballast("serve", "--help")
    assert shown.returncode == 0
    for word in ("model:", "scheduling and KV cache:", "machine:", "server:", "log:", "--cache_lens", "BALLAST_<NAME>"):
        assert word in shown.stdout


def test_version_prints_the_version():
    assert ballast("version").stdout == f"{__version__}\n"
    assert ballast("--version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("package", "advice"),
    [("orjson", "install the wheel again"), ("torch", "install the wheel with its extra: WHEEL[runtime]")],
)
def test_a_missing_package_is_one_sentence_with_the_command(capsys, package, advice):
    def command():
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    assert cli.exit_code(command) == 2
    shown = capsys.readouterr().err
    assert shown == f"ballast: the package {package} is not installed; run `make setup` in the clone, or {advice}\n"


def test_the_help_of_plan_begins_with_its_own_options():
    shown = ballast("plan", "--help").stdout
    assert shown.startswith("usage: ballast plan [MODEL] [--json] [OPTION ...]\n")
    assert shown.index("--json  ") < shown.index("--gguf_path")


def test_a_mistyped_option_gets_a_suggestion(capsys):
    for argv, hint in (
        (["serve", "--max-batchsize", "3"], "did you mean --max_batch_size?"),
        (["chat", "--modle=x"], "did you mean --model?"),
        (["serv", "model.gguf"], "no command 'serv'; did you mean serve?"),
        (["zzz"], "no command 'zzz'; commands are serve, pull,"),
        ([], "a command is missing; commands are serve, pull,"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(argv)
        assert ended.value.code == 2
        assert hint in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["serve", "--zzzzzz"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("spelling", ["--max_batch_size", "--max-batch-size"])
@pytest.mark.parametrize("joined", [True, False])
def test_underscores_and_hyphens_are_the_same(spelling, joined):
    arguments = [f"{spelling}=3"] if joined else [spelling, "3"]
    assert cli.serve_config(arguments).scheduling.max_batch_size == 3


def test_flags_have_an_opposite_that_beats_the_environment(monkeypatch):
    monkeypatch.setenv("BALLAST_FORCE_THINK", "true")
    assert cli.serve_config([]).model.force_think is True
    assert cli.serve_config(["--no-force_think"]).model.force_think is False
    assert cli.serve_config(["--no_force_think", "--force-think"]).model.force_think is True


def test_values_keep_their_hyphens():
    names = ["--served-model-name", "a-b", "--served_model_name=c-d"]
    assert cli.serve_config(names).model.served_model_name == ("a-b", "c-d")


def test_bad_configuration_exits_with_2_and_one_sentence():
    ended = ballast("serve", "--max_new_tokens", "1024", "--cache_lens", "4096")
    assert ended.returncode == 2
    assert ended.stderr == (
        "ballast: cache_lens=4096: must be greater than max_batch_size * max_new_tokens = 4 * 1024 = 4096, so that a "
        "full batch of full-length replies fits; the smallest cache_lens that passes is 4097\n"
    )


def test_the_environment_is_checked_like_the_command_line():
    ended = ballast("serve", BALLAST_PORT="eighty")
    assert ended.returncode == 2
    assert ended.stderr == "ballast: port=eighty: must be a whole number, at least 0 and at most 65535\n"


def test_the_command_line_overrides_the_environment_which_overrides_the_file(tmp_path, monkeypatch):
    file = tmp_path / "ballast.yaml"
    file.write_text("max_batch_size: 1\nport: 1\nchunk_size: 100\n")
    monkeypatch.setenv("BALLAST_MAX_BATCH_SIZE", "2")
    monkeypatch.setenv("BALLAST_PORT", "2")
    config = cli.serve_config(["--config", str(file), "--port", "3"])
    assert (config.server.port, config.scheduling.max_batch_size, config.scheduling.chunk_size) == (3, 2, 100)
    monkeypatch.setenv("BALLAST_CONFIG", str(file))
    assert cli.serve_config([]).scheduling.chunk_size == 100
    monkeypatch.setenv("BALLAST_CONFIG", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"config=.*absent: cannot be read: No such file"):
        cli.serve_config([])


def test_misspelt_variables_cause_a_warning_but_kubernetes_service_variables_do_not():
    links = {
        "BALLAST_PORT": "tcp://10.43.0.7:10002",
        "BALLAST_SERVICE_HOST": "10.43.0.7",
        "BALLAST_SERVICE_PORT": "10002",
        "BALLAST_PORT_10002_TCP": "tcp://10.43.0.7:10002",
    }
    ended = ballast("serve", "--log_format", "json", BALLAST_POTR="secret", BALLAST_CACHE_LENS="1", **links)
    assert ended.returncode == 2, "another error, which is also reported"
    warning, reason = ended.stderr.splitlines()
    shown = json.loads(warning)
    assert (shown["level"], shown["event"], shown["variable"]) == ("warning", "environment", "BALLAST_POTR")
    assert shown["problem"] == "no such variable; did you mean BALLAST_PORT?"
    assert reason.startswith("ballast: cache_lens=1: ")


def test_a_misspelt_variable_is_reported_by_every_command_at_every_log_level():
    for arguments in (["version"], ["doctor"], ["plan", "--log_level", "error"]):
        ended = ballast(*arguments, BALLAST_POTR="secret")
        assert "BALLAST_POTR" in ended.stderr, arguments
        assert "did you mean BALLAST_PORT?" in ended.stderr, arguments
        assert "secret" not in ended.stderr


COMMANDS = [
    ["doctor"],
    ["version"],
    ["--version"],
    ["--help"],
    ["plan", "--help"],
    ["plan", "--json"],
    ["plan"],
    ["models"],
]


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


OUTPUTS = {
    "full": (lambda: os.open("/dev/full", os.O_WRONLY), "", "No space left on device"),
    "closed": (lambda: os.open(os.devnull, os.O_WRONLY), ">&-", "Bad file descriptor"),
    "broken pipe": (closed_pipe, "", "Broken pipe"),
}


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        *((arguments, "full") for arguments in COMMANDS),
        *((arguments, output) for arguments in (["--help"], ["plan"]) for output in ("closed", "broken pipe")),
        *if_long(
            *(
                (arguments, output)
                for arguments in COMMANDS
                if arguments not in (["--help"], ["plan"])
                for output in ("closed", "broken pipe")
            )
        ),
    ],
)
def test_an_output_error_is_reported_in_one_sentence(arguments, output):
    """Commands write in different ways, but the handling of an output error does not depend on the command."""
    opened, redirection, reason = OUTPUTS[output]
    descriptor = opened()
    try:
        ended = subprocess.run(
            ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, "-m", "ballast", *arguments],
            stdout=descriptor,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HF_HUB_CACHE": "/nonexistent"},
        )
    finally:
        os.close(descriptor)
    assert ended.stderr.splitlines()[-1:] == [f"ballast: standard output cannot be written: {reason}"]
    assert ended.returncode == cli.EXIT_NO_OUTPUT
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_a_failed_command_keeps_its_exit_code_if_output_fails():
    ended = subprocess.run(
        ["bash", "-c", '"$@" >/dev/full 2>/dev/full', "bash", sys.executable, "-m", "ballast", "plan", "README.gguf"],
        timeout=60,
        check=False,
    )
    assert ended.returncode == ConfigError.exit_code


def test_a_process_without_standard_streams_writes_into_no_file(tmp_path):
    command = 'exec "$@" >&- 2>&- <&-'
    ended = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "ballast", "tiny-model", str(tmp_path)],
        timeout=60,
        check=False,
    )
    assert ended.returncode == cli.EXIT_NO_OUTPUT
    assert open_gguf(tmp_path / "model.gguf").metadata["general.architecture"] == "deepseek2"


def test_a_plan_rejects_a_model_whose_template_the_server_rejects(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for")
    words = ["plan", "--device", "cpu", "--memory_bandwidth", "46GB/s", "--chat_template", str(template)]
    ended = ballast(*words)
    assert ended.returncode == ModelError.exit_code
    assert "fits" not in ended.stdout
    template.write_text("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}")
    ended = ballast(*words)
    assert ended.returncode == 0, ended.stderr
    assert "It fits." in ended.stdout


@pytest.mark.parametrize("arguments", [[], ["sing"], ["serve", "--cache_len", "5"], ["serve", "a.gguf", "b.gguf"]])
def test_a_command_line_that_makes_no_sense_exits_with_2(arguments):
    ended = ballast(*arguments)
    assert ended.returncode == 2
    assert "usage: ballast" in ended.stderr


def test_a_file_that_is_not_a_model_exits_with_3_and_its_name(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model")
    ended = ballast("serve", "--gguf_path", str(file))
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-1].startswith(f"ballast: {file}: ")


def test_a_file_name_that_is_not_text_is_shown_escaped(tmp_path):
    file = os.fsdecode(os.fsencode(tmp_path / "m") + b"\xff.gguf")
    Path(file).symlink_to(BUILT_IN.gguf)
    words = ["plan", "--gguf_path", file, "--device", "cpu", "--memory_bandwidth", "46GB/s"]
    shown = ballast(*words, LC_ALL="C.UTF-8")
    assert shown.returncode == 0, shown.stderr
    assert "m\\udcff.gguf" in shown.stdout


def test_a_tiny_models_type_may_use_the_gguf_spelling(tmp_path):
    made = ballast("tiny-model", str(tmp_path / "tiny"), "--quant", "IQ2_XXS")
    assert made.returncode == 0, made.stderr
    assert open_gguf(tmp_path / "tiny" / "model.gguf").tensors["output.weight"].ggml_type.name == "IQ2_XXS"


def test_the_shape_of_a_tiny_model_may_be_a_gguf_architecture(tmp_path):
    for option in ("--shape", "--family", "--arch"):
        made = ballast("tiny-model", str(tmp_path / option), option, "deepseek4")
        assert made.returncode == 0, made.stderr
        assert open_gguf(tmp_path / option / "model.gguf").metadata["general.architecture"] == "deepseek4"
    refused = ballast("tiny-model", str(tmp_path / "other"), "--shape", "deepseek5")
    assert refused.returncode == 2
    names, _, architectures = refused.stderr.rstrip().rpartition("expected ")[2].partition(", or an architecture: ")
    assert set(names.split(", ")) == {"ballast", *PRESETS}
    assert set(architectures.split(", ")) == {*ARCHITECTURES}
    helped = " ".join(ballast("tiny-model", "--help").stdout.split())
    assert set(names.split(", ")) == set(re.search(r"--shape SHAPE (.*), or a general", helped)[1].split(", "))


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_exits_with_3(tmp_path):
    model = write_tiny_model(tmp_path / "small", arch="v2")
    other = write_tiny_model(tmp_path / "other", arch="v2")
    file = other.config_dir / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [last | {"id": 1026 + more, "content": f"<more {more}>"} for more in range(100)]
    file.write_text(json.dumps(tokenizer))
    ended = ballast("serve", "--gguf_path", str(model.gguf), "--model_path", str(other.config_dir))
    assert ended.returncode == 3
    assert "1126 tokens and the model 1088 embedding rows" in ended.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("key", "value", "do otherwise"), 2),
        (ModelError("file", "is broken"), 3),
        (OutOfMemoryError("needs 5 GiB, 4 GiB are there"), 4),
        (ZeroDivisionError("oops"), 70),
        (ModelError("m\udcff.gguf", "is broken"), 3),
    ],
)
def test_the_reason_for_ending_reaches_standard_error_and_the_termination_log(
    error, code, tmp_path, monkeypatch, capsys
):
    termination_log = tmp_path / "termination-log"
    termination_log.touch()
    monkeypatch.setattr(process_exit, "TERMINATION_LOG", termination_log)

    def fail():
        raise error

    assert cli.exit_code(fail) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert str(error).replace("\udcff", "\\udcff") in last
    assert termination_log.read_text() == last
