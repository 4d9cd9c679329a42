"""Options as command-line arguments: declared for argparse, with normalised spellings."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence

from ballast.config.options import Option


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Add `options` and --config to a parser."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with these options, one NAME: VALUE per line")
    groups = {opt.group: parser.add_argument_group(opt.group) for opt in options}
    for opt in options:
        group, name = groups[opt.group], f"--{opt.name}"
        # SUPPRESS: only options that were given reach read_config, which adds the environment and the defaults.
        if opt.kind.flag:
            group.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=opt.help)
            group.add_argument(
                f"--no_{opt.name}",
                dest=opt.name,
                action="store_false",
                default=argparse.SUPPRESS,
                help=f"disable --{opt.name}",
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
    return "" if opt.default == () else f" (default: {opt.kind.show(opt.default)})"


def normalised(argv: Sequence[str]) -> list[str]:
    """argv with underscores in option names, and ranges that argparse does not mistake for options."""
    return _with_ranges_joined(_underscored(argv))


def _underscored(argv: Sequence[str]) -> list[str]:
    """argv with underscores in option names; values are unchanged."""
    return [re.sub(r"^--[^=]+", lambda name: "--" + name[0][2:].replace("-", "_"), word) for word in argv]


def _with_ranges_joined(argv: Sequence[str]) -> list[str]:
    """argv with `--NAME -5..5` as `--NAME=-5..5`, because argparse mistakes -5..5 for an option."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1].startswith("--") and re.fullmatch(r"-\d+\.\..*", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def suggestion(unknown: Sequence[str], shown_help: str) -> str:
    """The options of `shown_help` with names similar to the unknown ones."""
    known = re.findall(r"--\w+", shown_help)
    names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    close = [match for name in names for match in difflib.get_close_matches(name, known, n=1)]
    return f"; did you mean {', '.join(dict.fromkeys(close))}?" if close else ""
