"""Where options are set besides the command line: the environment, and a YAML file. Both are refused by name where they
say something that no option understands, because a misspelt setting would otherwise be a setting that never was."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ballast.config import ENVIRONMENT_PREFIX, OPTIONS
from ballast.errors import ConfigError

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
"""Names the YAML file, as --config does."""

OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, "BALLAST_CPU_ISA"})
"""Variables of ours that are no options of `ballast serve`."""

MAX_FILE_BYTES = 1 << 20

# Kubernetes tells every pod of the Services beside it: a Service named "ballast" or "ballast-x" makes such variables.
_OF_A_SERVICE = re.compile(r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def options_in_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the environment sets, by option name; an empty variable sets nothing.

    Raises ConfigError for a variable with our prefix that is no option and no Service's.
    """
    names = {opt.variable: opt.name for opt in OPTIONS}
    found = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if _OF_A_SERVICE.fullmatch(variable) or (variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value)):
            continue
        if variable not in names:
            # The value stays unsaid: it may be a secret that was meant for elsewhere.
            raise ConfigError(variable, "…", _no_option("variable", variable, [*names, *OTHER_VARIABLES]))
        if value:
            found[names[variable]] = value
    return found


def options_in_file(path: Path) -> dict[str, Any]:
    """What a YAML file sets, by option name: text, lists of text, and bool. A key that is null sets nothing.

    Keys may be spelled with hyphens. Raises ConfigError.
    """
    content = _read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError("config", path, "must hold options as NAME: VALUE, one a line")
    names = [opt.name for opt in OPTIONS]
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in names:
            raise ConfigError("config", path, f"{key}: {_no_option('key', name, names)}")
        if name in found:
            raise ConfigError("config", path, f"{key}: is set twice")
        if value is not None:
            found[name] = _as_given(path, name, value)
    return found


def _as_given(path: Path, name: str, value: Any) -> Any:
    """A YAML value as the command line would bring it."""
    (opt,) = (opt for opt in OPTIONS if opt.name == name)
    if opt.kind.repeatable:
        return [str(item) for item in (value if isinstance(value, list) else [value])]
    if isinstance(value, (dict, list)) or (isinstance(value, bool) and not opt.kind.flag):
        raise ConfigError("config", path, f"{name}: {value!r} must be {opt.kind.allowed}")
    return value if isinstance(value, bool) else str(value)


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("config", path, f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError("config", path, f"larger than {MAX_FILE_BYTES} bytes, which is no file of options")
    try:
        root = yaml.compose(data, Loader=yaml.SafeLoader)
        if isinstance(root, yaml.MappingNode):
            # Loading would let the last one win, in silence.
            keys = Counter(key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode))
            for key, count in keys.items():
                if count > 1:
                    raise ConfigError("config", path, f"{key}: is set twice")
        return yaml.safe_load(data)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError("config", path, f"not valid YAML: {' '.join(str(error).split())}") from None


def _no_option(what: str, name: str, known: Iterable[str]) -> str:
    bare = {candidate.removeprefix(ENVIRONMENT_PREFIX): candidate for candidate in known}
    close = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), bare, n=1)
    hint = f"did you mean {bare[close[0]]}?" if close else "`ballast serve --help` lists the options"
    return f"no such {what}; {hint}"
