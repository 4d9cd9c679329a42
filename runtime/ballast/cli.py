"""The command line: argv and environment in, exit code out. The only reader of both.

Exit codes: 0 clean stop; 2 bad configuration; 3 model unusable; 4 not enough memory; 70 our own fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from ballast import __version__
from ballast.config import OPTIONS, Config, Option, read_config
from ballast.config_sources import CONFIG_VARIABLE, options_in_environment, options_in_file
from ballast.errors import BallastError

TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes looks for the reason why a container ended."""

EXIT_OUR_FAULT = 70


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Usage errors and --help leave through SystemExit, as argparse does."""
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: int(arguments.run(arguments)))


def exit_code(command: Callable[[], int]) -> int:
    """What `command` returns, or the code of the error that it raised, which is reported."""
    try:
        return command()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BallastError as error:
        _report(f"ballast: {error}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the edge of the process: say what happened, then end as our own fault
        traceback.print_exc()
        _report(f"ballast: internal error: {type(error).__name__}: {error}")
        return EXIT_OUR_FAULT


def serve_config(argv: Sequence[str]) -> Config:
    """The resolved configuration that the arguments after `serve`, and the environment, ask for. Raises ConfigError."""
    return _config(_parse(["serve", *argv]))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    return _parser().parse_args(_underscored(argv))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ballast",
        description="Serve DeepSeek-class mixture-of-experts models behind an OpenAI endpoint.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="start the server",
        description="Start the server.",
        epilog="Options may be spelled with hyphens. Each is also an environment variable, BALLAST_<NAME> "
        "(BALLAST_PORT for --port), and a key of the YAML file; the command line wins over the environment, and that "
        "over the file.",
        allow_abbrev=False,
    )
    _add_options(serve, OPTIONS)
    serve.set_defaults(run=_serve)

    plan = commands.add_parser(
        "plan",
        help="show which tensor would go where, and whether memory suffices",
        description="Show, before anything is loaded, which tensor goes where, its type and bytes, and the sum "
        "against the memory that is there. Takes the options of serve.",
        allow_abbrev=False,
    )
    plan.add_argument("--json", action="store_true", help="print it for programs")
    _add_options(plan, OPTIONS)
    plan.set_defaults(run=_plan)

    doctor = commands.add_parser("doctor", help="show what this machine offers and what is missing")
    doctor.set_defaults(run=_doctor)

    tiny = commands.add_parser("tiny-model", help="write a tiny model with random weights", allow_abbrev=False)
    tiny.add_argument("directory", type=Path, metavar="DIR", help="where model.gguf and config/ are written")
    tiny.add_argument("--arch", choices=("v2lite", "v2", "v3"), default="v3", help="default: %(default)s")
    tiny.add_argument("--mla", choices=("split", "joint"), default="split", help="default: %(default)s")
    tiny.add_argument("--quant", default="q4_k", metavar="TYPE", help="type of the matrices; default: %(default)s")
    tiny.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    tiny.set_defaults(run=_tiny_model)

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser


def _add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML file of these options, one NAME: VALUE a line")
    groups = {opt.group: parser.add_argument_group(opt.group) for opt in options}
    for opt in options:
        group, name = groups[opt.group], f"--{opt.name}"
        # SUPPRESS: only what was really given reaches read_config, which knows the environment and the defaults.
        if opt.kind.flag:
            group.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=opt.help)
            group.add_argument(
                f"--no_{opt.name}", dest=opt.name, action="store_false", default=argparse.SUPPRESS, help="the opposite"
            )
        else:
            group.add_argument(
                name,
                action="append" if opt.kind.repeatable else "store",
                default=argparse.SUPPRESS,
                metavar=opt.kind.metavar,
                help=opt.help + _shown_default(opt),
            )


def _shown_default(opt: Option) -> str:
    if opt.default is None:
        return " (default: auto)" if "auto" in opt.kind.metavar else ""
    return "" if opt.default == () else f" (default: {opt.default})"


def _underscored(argv: Sequence[str]) -> list[str]:
    """argv with every option's name spelled with underscores; values stay as they are."""
    return [re.sub(r"^--[^=]+", lambda name: "--" + name[0][2:].replace("-", "_"), word) for word in argv]


def _config(arguments: argparse.Namespace) -> Config:
    from ballast.machine import read_machine
    from ballast.resolve import resolve

    given = {opt.name: getattr(arguments, opt.name) for opt in OPTIONS if opt.name in arguments}
    file = arguments.config or os.environ.get(CONFIG_VARIABLE)
    in_file = options_in_file(Path(file)) if file else {}
    config = read_config(given, options_in_environment(os.environ), in_file)
    return resolve(config, read_machine().num_physical_cores)


def _serve(arguments: argparse.Namespace) -> int:
    # Until the server has its own handlers. Importing takes a while, and a container's first process ignores signals
    # that it does not handle; there is nothing to put in order yet.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    config = _config(arguments)
    from ballast.server.serve import serve

    return serve(config)


def _plan(arguments: argparse.Namespace) -> int:
    from ballast import plan

    return plan.run(_config(arguments), as_json=arguments.json)


def _doctor(_: argparse.Namespace) -> int:
    from ballast import doctor

    return doctor.run()


def _tiny_model(arguments: argparse.Namespace) -> int:
    from ballast.tiny import write_tiny_model

    model = write_tiny_model(
        arguments.directory, arch=arguments.arch, mla=arguments.mla, quant=arguments.quant, seed=arguments.seed
    )
    sys.stdout.write(f"{model.gguf}\n{model.config_dir}\n")
    return 0


def _version(_: argparse.Namespace) -> int:
    sys.stdout.write(f"{__version__}\n")
    return 0


def _report(reason: str) -> None:
    """Say why the process ends: the last line on standard error, and where Kubernetes will find it."""
    sys.stderr.write(f"{reason}\n")
    if TERMINATION_LOG.exists():
        with contextlib.suppress(OSError):  # not writable is no second problem
            TERMINATION_LOG.write_text(reason.splitlines()[-1])
