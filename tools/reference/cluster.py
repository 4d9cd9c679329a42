"""The reference pages about the cluster: the resource, the operator's commands and metrics."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from ballast_operator.cli import _parser
from ballast_operator.control.state import OperatorState
from ballast_operator.definitions import model_cache_definition, service_definition
from ballast_operator.names import Ref
from ballast_operator.process.metrics import Metrics
from ballast_operator.spec_hash import restarts
from tools.pages import metric_row, paragraph, table

Schema = dict[str, Any]


def resource_page() -> Iterator[str]:
    """Every field of an InferenceService."""
    yield from _page(
        service_definition(),
        "Other projects have a kind InferenceService too, so use `bisvc` or `{name}` with kubectl. Unknown fields are "
        "rejected.",
        _spec_of_services,
    )


def cache_page() -> Iterator[str]:
    """Every field of a ModelCache."""
    yield from _page(model_cache_definition(), "[How to use a ModelCache](../kubernetes/model-cache.md).", _rows)


def _page(definition: Schema, remark: str, describe_spec: Callable[[Schema, str], Iterator[str]]) -> Iterator[str]:
    """A page about a kind. `remark` ends the first paragraph. `describe_spec` describes the fields of the spec."""
    spec = definition["spec"]
    versions, names = spec["versions"], spec["names"]
    parts = versions[0]["schema"]["openAPIV3Schema"]["properties"]
    served = " and ".join(f"`{version['name']}`" for version in versions)
    yield f"# {names['kind']}: all fields of spec and status"
    yield ""
    yield from paragraph(
        f"Group `{spec['group']}`, versions {served} ([compatibility](../kubernetes/upgrade.md#versions-of-the-api)), "
        f"plural `{names['plural']}`, short name `{names['shortNames'][0]}`, namespaced. "
        f"{remark.format(name=definition['metadata']['name'])}"
    )
    for part, title, describe in (
        ("spec", "Spec", describe_spec),
        ("status", "Status", _rows),
    ):
        yield ""
        yield f"## {title}"
        yield ""
        yield from describe(parts[part], part)
    yield ""
    yield "## Validation rules"
    yield ""
    paths: dict[str, dict[str, None]] = {}
    for path, rule in rules(parts["spec"], "spec"):
        message = str(rule["message"] if "message" in rule else rule["rule"])
        paths.setdefault(message, {})[f"`{path}`"] = None
    yield from (f"- {', '.join(found)}: {message}" for message, found in paths.items())


def _rows(schema: Schema, part: str) -> Iterator[str]:
    yield from table(("field", "value", "default", "meaning"), fields(schema, part))


def _spec_of_services(schema: Schema, part: str) -> Iterator[str]:
    yield from paragraph(
        "*Restarts* is yes if a change replaces running pods, each of which then loads the model again. Labels, "
        "annotations and additional tolerations are applied to running pods. Other changes without a restart affect "
        "other objects, or take effect with the next pod. A pod whose engine does not run is replaced after any "
        "change of its settings."
    )
    yield ""
    rows = ((*row[:3], _restarts(row[0]), row[3]) for row in fields(schema, part))
    yield from table(("field", "value", "default", "restarts", "meaning"), rows)


def _restarts(field: str) -> str:
    path = field.split("`")[1].removeprefix("spec.")
    return "yes" if restarts(path) else "no"


def fields(schema: Schema, path: str, listed: dict[str, str] | None = None) -> Iterator[tuple[str, ...]]:
    """One row per field, parents before children. Equal children are listed once: `listed` maps the schema of an object
    to the path that lists its fields."""
    listed = {} if listed is None else listed
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        inner = field["items"] if field.get("type") == "array" else field
        inside = here + ("[]" if inner is not field else "")
        content = json.dumps([inner.get("properties"), inner.get("required")], sort_keys=True)
        first = listed.setdefault(content, inside) if inner.get("properties") else inside
        default = field.get("default")
        shown = f"`{default}`" if default not in (None, {}, []) and not isinstance(default, dict) else "–"
        mark = " (required)" if name in required else ""
        meaning = field.get("description", "") + (f" Fields: those of `{first}`." if first != inside else "")
        yield f"`{here}`{mark}", allowed(field), shown, meaning
        if first == inside:
            yield from fields(inner, inside, listed)


def allowed(field: Schema) -> str:
    """A field's type and bounds in words."""
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    kind: str = field.get("type", "any")
    bounds = {"minimum": "from", "maximum": "to"}
    return " ".join(
        ["list" if kind == "array" else kind, *(f"{word} {field[key]}" for key, word in bounds.items() if key in field)]
    )


def rules(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """The CEL rules and the fields that they belong to."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule
    for name, field in schema.get("properties", {}).items():
        yield from rules(field["items"] if field.get("type") == "array" else field, f"{path}.{name}")


def operator_page() -> Iterator[str]:
    """Commands and options of `ballast-operator`."""
    yield "# Commands and options of `ballast-operator`"
    yield ""
    yield from paragraph(
        "The chart sets what is needed; these are for running it by hand, and for looking at a cluster."
    )
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help for choice in commands._choices_actions}
    for name, command in commands.choices.items():
        yield ""
        yield f"## `ballast-operator {name}`"
        yield ""
        yield f"{str(helps[name])[0].upper()}{str(helps[name])[1:]}."
        rows = [
            (f"`{_name_of(action)}`", f"`{action.metavar}`" if action.metavar else "–", help_of(action))
            for action in command._actions
            if action.dest != "help"
        ]
        if rows:
            yield ""
            yield from table(("option", "value", "meaning"), rows)


def _name_of(action: argparse.Action) -> str:
    """The longest spelling of an option, or the name of an argument without one."""
    return action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest.upper())


def help_of(action: argparse.Action) -> str:
    """The help of an option with its default. A default that depends on the machine is named instead."""
    text = (action.help or "").replace("%(default)s", f"`{action.default}`" if action.default is not None else "–")
    return text[0].upper() + text[1:] if text else "–"


def operator_metrics() -> Iterator[str]:
    """The operator's metrics, on /metrics of its health port."""
    state = OperatorState()
    state.of(Ref("", "")).conditions = ({"type": "", "status": "", "reason": ""},)
    shown = Metrics(state)
    shown.reconciled(1.0, None)
    shown.requested("get", 200)
    shown.watched("Pod")
    yield "## Metrics of the operator"
    yield ""
    rows = [metric_row(family) for family in sorted(shown.registry.collect(), key=lambda family: family.name)]
    yield from table(("name", "type", "labels", "meaning"), rows)
