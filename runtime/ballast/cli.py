"""The command line: argv and environment in, exit code out. No other module reads options from them.

Exit codes: 0 clean stop; 2 bad configuration; 3 model unusable; 4 not enough memory; 70 internal error; 74 output not
writable.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ballast.config.arguments import add_options, normalised, suggestion
from ballast.config.options import OPTIONS, QUEUE_OPTIONS, Config, LogConfig, read_config
from ballast.config.sources import CONFIG_VARIABLE, options_in_environment, options_in_file, unknown_variables
from ballast.errors import BallastError, ConfigError, first_line, how_to_install
from ballast.log import configure_logging
from ballast.process_exit import output_error, report, watch_output
from ballast.version import __version__

if TYPE_CHECKING:
    from ballast.hub.naming import HubName

log = logging.getLogger(__name__)

EXIT_OUR_FAULT = 70
EXIT_NO_OUTPUT = 74
"""The same as in sysexits.h."""

_SERVE = (
    *("fastapi", "gguf", "httpx2", "huggingface_hub", "jinja2", "llguidance", "numpy", "openai", "orjson"),
    *("prometheus_client", "pydantic", "starlette", "tokenizers", "tqdm", "uvicorn", "uvloop", "yaml"),
)
_GPU = ("torch", "triton")
_EXTRAS = {**dict.fromkeys(_SERVE, None), **dict.fromkeys(_GPU, "runtime")}
"""Third-party packages → the extra of the wheel that has them; None: the wheel itself."""

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_DEFAULT_URL = "http://127.0.0.1:10002/v1"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Usage errors and --help raise SystemExit, as argparse does."""
    watch_output()
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
    except SystemExit as stop:
        raise SystemExit(_exit_of_output(int(stop.code or 0))) from None
    if "config" not in arguments:  # commands with options name them in the log
        for variable, problem in unknown_variables(os.environ).items():
            sys.stderr.write(f"ballast: environment variable {variable}: {problem}\n")
    return _exit_of_output(exit_code(lambda: int(arguments.run(arguments))))


def _exit_of_output(code: int) -> int:
    """`code`; for a successful command whose output could not be written, report that and return its exit code."""
    error = output_error()
    if error is None:
        return code
    report(f"ballast: standard output cannot be written: {error.strerror}")
    return code or EXIT_NO_OUTPUT


def exit_code(command: Callable[[], int]) -> int:
    """The result of `command`. If it raises an error, report it and return its exit code."""
    try:
        return command()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BallastError as error:
        report(f"ballast: {error}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the process boundary: report, and exit with the code for internal errors
        if isinstance(error, OSError) and error is output_error():
            return EXIT_NO_OUTPUT
        if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in _EXTRAS:
            report(f"ballast: the package {package} is not installed; {how_to_install(_EXTRAS[package])}")
            return ConfigError.exit_code
        traceback.print_exc()
        report(f"ballast: internal error: {first_line(error)}")
        return EXIT_OUR_FAULT


def serve_config(argv: Sequence[str]) -> Config:
    """The resolved configuration of `ballast serve` with arguments `argv` and the environment. Raises ConfigError."""
    return _config(_parse(["serve", *argv]))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser, commands = _parser()
    if not (name := "".join(argv[:1])).startswith("-") and name not in commands.choices:
        close = difflib.get_close_matches(name, commands.choices, n=1)
        hint = f"did you mean {close[0]}?" if close else f"commands are {', '.join(commands.choices)}"
        parser.error(f"no command {name!r}; {hint}" if name else f"a command is missing; {hint}")
    arguments, unknown = parser.parse_known_args(normalised(argv))
    if unknown:
        command = commands.choices[arguments.command]
        command.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion(unknown, command.format_help())}")
    return arguments


def _parser() -> tuple[argparse.ArgumentParser, _Commands]:
    parser = argparse.ArgumentParser(
        prog="ballast",
        description="Serve large mixture-of-experts models behind an OpenAI-compatible API.",
        epilog="Try: ballast serve FOLDER, with a folder of GGUF files. Options: ballast COMMAND --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _add_serve,
        _add_pull,
        _add_models,
        _add_plan,
        _add_batch,
        _add_profile,
        _add_doctor,
        _add_chat,
        _add_tiny_model,
        _add_version,
    ):
        add(commands)
    return parser, commands


def _config(arguments: argparse.Namespace, *, for_another: bool = False) -> Config:
    """The resolved configuration; see `resolve`. Raises ConfigError."""
    from ballast.config.resolve import resolve
    from ballast.host.machine import read_machine

    given = {opt.name: getattr(arguments, opt.name) for opt in OPTIONS if opt.name in arguments}
    file = arguments.config or os.environ.get(CONFIG_VARIABLE)
    in_file = options_in_file(Path(file)) if file else {}
    config = read_config(given, options_in_environment(os.environ), in_file)
    _warn_of_unknown_variables(config.log)
    return resolve(config, read_machine().default_threads, for_another=for_another)


def _warn_of_unknown_variables(settings: LogConfig) -> None:
    unknown = unknown_variables(os.environ)
    if not unknown:
        return
    configure_logging(settings)
    for variable, problem in unknown.items():
        level = max(logging.WARNING, log.getEffectiveLevel())  # also with --log_level error
        log.log(level, "environment", extra={"variable": variable, "problem": problem})


def _add_serve(commands: _Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="start the server",
        usage="%(prog)s [MODEL] [OPTION ...]",
        description="Start the server.",
        epilog="Options may be spelled with hyphens. Each is also an environment variable, BALLAST_<NAME> "
        "(BALLAST_PORT for --port), and a key of the YAML file. The command line overrides the environment, "
        "and the environment overrides the file.",
        allow_abbrev=False,
    )
    _add_model(parser)
    add_options(parser, OPTIONS)
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    # Until the server installs its own handlers. Importing takes a while, and PID 1 of a container ignores signals
    # without a handler. There is nothing to clean up yet.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    hub_name = _hub_name(arguments)
    config = _config(arguments)
    if hub_name is not None:
        config = _pulled(config, hub_name, arguments.model)
    from ballast.server.serve_command import serve

    return serve(config)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, the folder of one model, org/repo:QUANT[@revision] of a hub, s3://bucket/prefix[:QUANT] or "
        "oci://registry/repo:tag; default: the built-in model",
    )


def _hub_name(arguments: argparse.Namespace) -> HubName | None:
    """The hub's name of MODEL; None if MODEL is not given, or a file, which becomes the option gguf_path. Raises
    ConfigError."""
    model: str | None = arguments.model
    if model is None:
        return None
    if "gguf_path" in arguments:
        raise ConfigError("gguf_path", arguments.gguf_path, f"and {model} are two models; pass one")
    if Path(model).exists() or (model.endswith(".gguf") and ":" not in model):
        arguments.gguf_path = model
        return None
    from ballast.hub.naming import read_name

    return read_name(model)


def _pulled(config: Config, name: HubName, model: str) -> Config:
    """The configuration that serves a hub's model under the given name. Downloads the model if it is missing."""
    from ballast.hub.pull import pull
    from ballast.hub.remote import Hub

    found = pull(name, Hub.of_environment(name.site), config)
    named = found.model(found.store.snapshot(found.commit), config.model)
    return replace(config, model=replace(named, served_model_name=named.served_model_name or (model,)))


def _add_pull(commands: _Commands) -> None:
    parser = commands.add_parser(
        "pull",
        help="download a model from a hub",
        description="Download one quantisation of a model from a hub into the hub's own cache, if it fits this "
        "machine. An interrupted download resumes where it stopped. HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and "
        "HF_HUB_OFFLINE mean the same as in the hub's own tools. For ModelScope, use modelscope.cn/org/repo:QUANT and "
        "the token MODELSCOPE_API_TOKEN. For an S3-compatible store, use s3://bucket/prefix:QUANT with "
        "AWS_ENDPOINT_URL, AWS_REGION and AWS_ACCESS_KEY_ID as for the AWS CLI. For an OCI registry, use "
        "oci://registry/repo:tag with the credentials of `docker login`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="org/repo:QUANT[@revision], s3://… or oci://…; without QUANT, the choices are listed",
    )
    parser.add_argument("--skip_plan", action="store_true", help="skip the check of memory: for another machine")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="for programs: write the result as JSON with a reason and a message"
    )
    parser.add_argument(
        "--progress_port", type=int, metavar="PORT", help="for programs: serve progress as JSON of /readyz on this port"
    )
    parser.set_defaults(run=_pull)


def _pull(arguments: argparse.Namespace) -> int:
    # As in _serve. Downloaded data is kept, and the next pull resumes.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    from ballast.hub.naming import read_name
    from ballast.hub.pull import pull
    from ballast.hub.remote import Hub
    from ballast.hub.report import progress_page, written_to

    with written_to(arguments.report) as ending, progress_page(arguments.progress_port) as on_progress:
        name = read_name(arguments.model)
        config = None if arguments.skip_plan else serve_config([])
        found = pull(name, Hub.of_environment(name.site), config, on_progress=on_progress)
        file = found.store.snapshot(found.commit) / found.choice.files[0].path
        ending |= {
            "reason": "Pulled",
            "message": f"{name.repo}:{found.choice.quant} at {found.commit}",
            "file": str(file),
        }
        sys.stdout.write(f"{file}\n")
    return 0


def _add_models(commands: _Commands) -> None:
    parser = commands.add_parser("models", help="list downloaded models, or remove them")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--remove", metavar="MODEL", help="org/repo: remove everything downloaded from it")
    which.add_argument("--remove_all", action="store_true", help="remove everything downloaded, from all hubs")
    parser.set_defaults(run=_models)


def _models(arguments: argparse.Namespace) -> int:
    from ballast.hub.library import listed, remove, remove_all
    from ballast.hub.naming import SITES, read_name
    from ballast.hub.remote import all_caches, cache_of

    if arguments.remove_all:
        sys.stdout.write(remove_all(all_caches()))
    elif arguments.remove is None:
        sys.stdout.write(listed({site: cache_of(site) for site in SITES}))
    else:
        name = read_name(arguments.remove)
        sys.stdout.write(remove(cache_of(name.site), name))
    return 0


def _add_plan(commands: _Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="show whether a model fits this machine, and how fast it would be",
        usage="%(prog)s [MODEL] [--json] [OPTION ...]",
        description="Show memory, context length, expected speed and the device of each tensor, before anything is "
        "loaded. For a model on a hub, only the headers are read. Takes the options of serve.",
        allow_abbrev=False,
    )
    _add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--hot_experts", metavar="N:SHARE", help="share of the uses that a layer's N most used experts get: 32:0.5"
    )
    machine = parser.add_argument_group("another machine", "Default: this machine.")
    machine.add_argument("--host_memory", metavar="SIZE", help="memory that may be used, such as 384GiB")
    machine.add_argument("--memory_bandwidth", metavar="RATE", help="its bandwidth, such as 300GB/s; default: measured")
    machine.add_argument("--gpu_bandwidth", metavar="RATE", help="bandwidth of the GPU; default: by its name")
    machine.add_argument("--pcie", metavar="BUS", help="PCIe generation and lanes, such as 4x16, or a bandwidth")
    machine.add_argument(
        "--threads", dest="cpu_threads", default=argparse.SUPPRESS, metavar="N", help="the same as --cpu_threads"
    )
    add_options(parser, OPTIONS)
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from ballast import plan
    from ballast.plan.described import THIS_MACHINE, read_described

    hub_name = _hub_name(arguments)
    described = read_described(vars(arguments))
    if described != THIS_MACHINE and "vram_limit" in arguments and "device" not in arguments:
        arguments.device = "cuda"  # the GPU need not be in this machine
    config = _config(arguments, for_another=described != THIS_MACHINE)
    if hub_name is None:
        return plan.run(config, as_json=arguments.json, described=described)
    from ballast.hub.pull import find, print_plan
    from ballast.hub.remote import Hub

    hub = Hub.of_environment(hub_name.site)
    print_plan(find(hub_name, hub, sys.stderr), hub, config, as_json=arguments.json, described=described)
    return 0


_WITHOUT_HTTP = frozenset({"request_timeout_s", "max_body_bytes", "unknown_fields"})
"""Options of the server section that also apply without HTTP."""


def _add_batch(commands: _Commands) -> None:
    parser = commands.add_parser(
        "batch",
        help="process a file of requests without a server",
        usage="%(prog)s REQUESTS REPLIES [OPTION ...]",
        description="Process a file of requests in OpenAI's batch format, and write each result when it is done. The "
        "same command resumes an interrupted batch. Exits with 1 if any request failed. Takes those options of serve "
        "that are not about HTTP.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "requests",
        type=Path,
        metavar="REQUESTS",
        help='one per line: {"custom_id": …, "method": "POST", "url": …, "body": …}',
    )
    parser.add_argument("replies", type=Path, metavar="REPLIES", help="file to which the replies are appended")
    counts = [o for o in OPTIONS if o.name not in QUEUE_OPTIONS and (o.section != "server" or o.name in _WITHOUT_HTTP)]
    add_options(parser, counts)
    parser.set_defaults(run=_batch)


def _batch(arguments: argparse.Namespace) -> int:
    from ballast.batch.command import run

    return run(_config(arguments), arguments.requests, arguments.replies)


def _add_profile(commands: _Commands) -> None:
    parser = commands.add_parser(
        "profile",
        help="record which experts some prompts use, for placing experts",
        description="Process some prompts and record how often each routed expert is used. With --expert_profile, "
        "serve and plan put the most used experts into GPU memory first. Takes the options of serve.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "prompts",
        type=Path,
        metavar="PROMPTS",
        help='one prompt per line: {"prompt": "a text"} or {"token_ids": [1, 2]}, with "max_tokens" for the reply',
    )
    parser.add_argument("--out", type=Path, default=Path("profile.json"), metavar="FILE", help="default: %(default)s")
    add_options(parser, OPTIONS)
    parser.set_defaults(run=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    from ballast import profiling

    return profiling.run(_config(arguments), arguments.prompts, arguments.out)


def _add_doctor(commands: _Commands) -> None:
    parser = commands.add_parser("doctor", help="show the hardware that Ballast finds, and what is missing")
    parser.add_argument(
        "--bandwidth", action="store_true", help="measure memory per NUMA node, and each GPU's bus: some seconds"
    )
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from ballast.host import doctor

    return doctor.run(measure=arguments.bandwidth)


def _add_chat(commands: _Commands) -> None:
    parser = commands.add_parser(
        "chat",
        help="chat with a server in the terminal",
        description="Chat with any OpenAI-compatible endpoint. /help lists the commands, /exit quits, Ctrl-C cancels a "
        "reply. If the endpoint needs a key, set the environment variable OPENAI_API_KEY.",
        allow_abbrev=False,
    )
    parser.add_argument("--url", default=_DEFAULT_URL, help="the endpoint, a URL or HOST:PORT; default: %(default)s")
    parser.add_argument("--model", metavar="NAME", help="default: the first that the endpoint lists")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--temperature", type=float, metavar="T", help="default: the server's")
    parser.add_argument("--max_tokens", type=int, metavar="N", help="most tokens of a reply; default: the server's")
    parser.set_defaults(run=_chat)


def _chat(arguments: argparse.Namespace) -> int:
    from ballast.chat.terminal import run

    named = {"temperature": arguments.temperature, "max_tokens": arguments.max_tokens}
    settings = {name: value for name, value in named.items() if value is not None}
    key = os.environ.get("OPENAI_API_KEY")
    return run(arguments.url, api_key=key, model=arguments.model, system=arguments.system, settings=settings)


def _add_tiny_model(commands: _Commands) -> None:
    parser = commands.add_parser(
        "tiny-model",
        help="write the built-in model, or a random one, in a given layout and type",
        description="Write a small model for tests: the built-in one in another layout or type (--shape ballast), or "
        "random weights in the shape of another model.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where model.gguf and config/ are written")
    shapes = (
        *("ballast", "v2lite", "v2", "v3", "v32", "k2", "k25", "kimilinear", "qwen3", "qwen3next", "qwen35"),
        *("qwen38flashnext", "glm45", "glm45air", "glm47flash", "glm5", "glm53flash", "minimaxm2", "hy3", "dots1"),
        *("gptoss", "step35", "mimov2", "v4", "laguna", "lagunam1", "mistral4", "mistrallarge3"),
    )
    parser.add_argument(
        "--shape",
        default="ballast",
        help=f"{', '.join(shapes)}, or a general.architecture for its first shape; default: %(default)s; "
        "earlier names of this option: --family, --arch",
    )
    earlier = "--family", "--arch"
    parser.add_argument(*earlier, dest="shape", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--mla",
        choices=("split", "joint"),
        default="split",
        help="tensors of latent attention; joint as in old files; default: %(default)s",
    )
    parser.add_argument(
        "--quant",
        type=str.lower,
        default="q8_0",
        metavar="TYPE",
        help="type of the matrices, such as iq2_xxs, or q4_k_m, a mix; default: %(default)s",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of random weights; default: %(default)s")
    parser.set_defaults(run=_tiny_model)


def _tiny_model(arguments: argparse.Namespace) -> int:
    from ballast.tiny import write_built_in, write_tiny_model
    from ballast.tiny.presets import preset_of

    directory, layout = arguments.directory, {"mla": arguments.mla, "quant": arguments.quant}
    if arguments.shape == "ballast":
        model = write_built_in(directory, **layout)
    else:
        model = write_tiny_model(directory, arch=preset_of(arguments.shape), seed=arguments.seed, **layout)
    sys.stdout.write(f"{model.gguf}\n{model.config_dir}\n")
    return 0


def _add_version(commands: _Commands) -> None:
    parser = commands.add_parser("version", help="print the version")
    parser.set_defaults(run=_version)


def _version(_: argparse.Namespace) -> int:
    sys.stdout.write(f"{__version__}\n")
    return 0
