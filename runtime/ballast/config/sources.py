"""Reads options from the environment and from a YAML file.

An unknown key of the file is an error, because a misspelt setting would otherwise be ignored. An unknown variable is
only reported: other programs may use it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballast.config.options import ENVIRONMENT_PREFIX, OPTIONS
from ballast.documents.small_file import DocumentError
from ballast.errors import ConfigError, shown

if TYPE_CHECKING:
    from ballast.documents.yaml_document import Plain

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
"""The variable for the path of the YAML file, like --config."""

OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, "BALLAST_CPU_ISA", "BALLAST_MODEL_CACHE"})
"""Variables with our prefix that are not options of `ballast serve`."""

# Kubernetes sets variables for Services in each pod; those of a Service "ballast" or "ballast-x" have our prefix.
_SERVICE_VARIABLE = re.compile(r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def options_in_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The options that the environment sets, by name. An empty variable sets nothing."""
    names = {opt.variable: opt.name for opt in OPTIONS}
    return {names[variable]: value for variable, value in _ours(environment).items() if value and variable in names}


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with our prefix that are neither an option nor a Service's → the problem, with a suggestion.

    Their values are not shown: one may be a secret for another program.
    """
    known = [*(opt.variable for opt in OPTIONS), *OTHER_VARIABLES]
    unknown = [variable for variable in _ours(environment) if variable not in known]
    return {variable: _unknown_option("variable", variable, known) for variable in unknown}


def _ours(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with our prefix, without those of Services."""
    return {
        variable: value
        for variable, value in environment.items()
        if variable.startswith(ENVIRONMENT_PREFIX)
        and not _SERVICE_VARIABLE.fullmatch(variable)
        and not (variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value))
    }


def options_in_file(path: Path) -> dict[str, Any]:
    """The options that a YAML file sets, by name: the text as on the command line, or lists of texts. A
    null value sets nothing.

    Keys may be spelled with hyphens. Raises ConfigError.
    """
    from ballast.documents.yaml_document import read_yaml  # `ballast doctor` runs without any package

    try:
        content = read_yaml(path, as_written=True)
    except DocumentError as error:
        raise ConfigError("config", path, str(error)) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError("config", path, "expected options as NAME: VALUE, one per line")
    names = [opt.name for opt in OPTIONS]
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in names:
            raise ConfigError("config", path, f"{shown(key)}: {_unknown_option('key', name, names)}")
        if name in found:
            raise ConfigError("config", path, f"{key}: is set twice")
        if value is not None:
            found[name] = _as_given(path, name, value)
    return found


def _as_given(path: Path, name: str, value: Plain) -> Any:
    """A YAML value as it would be given on the command line."""
    (opt,) = (opt for opt in OPTIONS if opt.name == name)
    wrong = ConfigError("config", path, f"{name}: {shown(value)} must be {opt.kind.allowed}")
    if opt.kind.repeatable or (opt.kind.listed and isinstance(value, list)):
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, (list, dict)) or item is None for item in items):
            raise wrong
        return [str(item) for item in items]
    if isinstance(value, (dict, list)):
        raise wrong
    return str(value)


def _unknown_option(what: str, name: str, known: Iterable[str]) -> str:
    bare = {candidate.removeprefix(ENVIRONMENT_PREFIX): candidate for candidate in known}
    close = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), bare, n=1)
    hint = f"did you mean {bare[close[0]]}?" if close else "`ballast serve --help` lists the options"
    return f"no such {what}; {hint}"
