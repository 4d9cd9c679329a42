"""Write docs/reference/ from the code: options, endpoints, fields of requests, tested clients, metrics, the resource,
the chart, the operator.

    python -m tools.reference [--check]

With --check nothing is written. The exit code says whether the pages are up to date.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ballast.config.options import OPTIONS, SECTIONS, Option
from ballast.engine.limits import Limits
from ballast.engine.publishing import Publisher
from ballast.server.app import admin_routers, api_app, api_routers
from ballast.server.openapi import BODY_ERRORS, EVERY_ERROR
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.server.telemetry.vram_metrics import VramProbe
from tools.chart import readme
from tools.pages import NOTE, is_file_with, metric_row, paragraph, table
from tools.reference.clients import clients_page
from tools.reference.cluster import cache_page, operator_metrics, operator_page, resource_page
from tools.reference.fields import request_fields

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main(arguments: list[str]) -> int:
    pages = {"options.md": options(), "endpoints.md": endpoints(), "metrics.md": metrics()}
    pages |= {"request-fields.md": request_fields(value), "clients.md": clients_page()}
    pages |= {"resource.md": resource_page(), "chart.md": readme(), "operator.md": operator_page()}
    pages |= {"model-cache.md": cache_page()}
    expected = {DOCS / "reference" / name: "\n".join((NOTE, *lines, "")) for name, lines in pages.items()}
    if arguments == ["--check"]:
        old = [str(path.relative_to(DOCS)) for path, text in expected.items() if not is_file_with(path, text)]
        if old:
            print(f"docs/: {', '.join(old)} are out of date with the code; run: make docs-reference")
        return 1 if old else 0
    for path, text in expected.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


# --- options ------------------------------------------------------------------------------------------------


def options() -> Iterator[str]:
    yield "# Options of `ballast serve`: command line, environment, config file"
    yield ""
    yield from paragraph(
        "An option is set on the command line (`--max_batch_size 8`), in the environment "
        "(`BALLAST_MAX_BATCH_SIZE=8`), or in a YAML file (`max_batch_size: 8`) that `--config` or `BALLAST_CONFIG` "
        "names. The command line takes precedence over the environment, and the environment over the file. Hyphens "
        "may replace underscores. Each flag has an opposite, such as `--no_force_think`. Options that can be repeated "
        "are separated by commas in the environment and are a list in the file. Values in the file have the same "
        "meaning as on the command line, including `off`, `1.10` and `22:22`. An unknown key in the file is an error. "
        "An unknown `BALLAST_` variable causes a warning with the nearest option, because Kubernetes and other "
        "programs set such variables too."
    )
    for section in SECTIONS.values():
        yield ""
        yield f"## {section.title[0].upper()}{section.title[1:]}"
        yield ""
        rows = [option_row(opt) for opt in OPTIONS if opt.group == section.title]
        yield from table(("option", "value", "default", "meaning"), rows)


def option_row(opt: Option) -> tuple[str, ...]:
    allowed = opt.kind.allowed + ("; can be repeated" if opt.kind.repeatable else "")
    default = {None: "auto" if "auto" in opt.kind.metavar else "–", (): "–", True: "on", False: "off"}
    shown = default.get(opt.default) if opt.default is None or opt.default in ((), True, False) else None
    is_number = isinstance(opt.default, (int, float)) and not isinstance(opt.default, bool)
    return f"`--{opt.name}`", allowed, f"`{opt.default}`" if shown is None or is_number else shown, opt.help


# --- endpoints ----------------------------------------------------------------------------------------------


def endpoints() -> Iterator[str]:
    yield "# API endpoints"
    yield ""
    yield from paragraph(
        "A running server returns the OpenAPI description at `GET /openapi.json`. With `--admin_port`, the endpoints "
        "of the second table are on that port only, unless the first table lists them too. With `--api_key_file`, all "
        "paths of the API's port except `/livez`, `/readyz`, `/health`, `/ping` and the page at `/` need a key. Paths "
        "of OpenAI's API also work without `/v1`."
    )
    both = api_app(api_routers(with_admin=False)).openapi()
    admin = api_app(admin_routers()).openapi()
    for title, described in (("API", both), ("Admin", admin)):
        yield ""
        yield f"## {title}"
        yield ""
        rows = [
            (f"`{method.upper()} {path}`", operation["description"].split("\n")[0], statuses(operation))
            for path, operations in described["paths"].items()
            for method, operation in operations.items()
        ]
        yield from table(("endpoint", "what it does", "statuses"), rows)
    yield ""
    yield "## Errors"
    yield ""
    yield from paragraph(
        'An error is `{"error": {"message", "type", "param", "code"}}`. `param` names the invalid field, and `code` is '
        "one of the [error codes](errors.md). Errors of `/v1/messages` have Anthropic's format, and errors of `/api/` "
        'have Ollama\'s: `{"error": "MESSAGE"}`.'
    )
    yield ""
    yield from table(
        ("status", "meaning"), [(str(n), why) for n, why in sorted({**EVERY_ERROR, **BODY_ERRORS}.items())]
    )
    yield ""
    yield "## Priority"
    yield ""
    yield from paragraph(
        "`--client_priority`, or the key's line in `--api_key_file`, sets the range of the field `priority`. Lower "
        "numbers are served first. A number outside the range is a 400; a request without the field gets the number "
        "of the range that is nearest to 0. Without a range, the field is ignored, and the reply's header "
        "`X-Ballast-Ignored` and the log's `ignored_fields` name it. [All fields](request-fields.md)."
    )
    yield ""
    yield "## Citations"
    yield ""
    yield from paragraph(
        "Text blocks of `/v1/messages` have `citations: []`, because Ballast cites nothing. The empty list satisfies "
        "Anthropic's published schema, which requires the key, and `@ai-sdk/anthropic` 3, which fails on null."
    )
    yield ""
    yield "## JSON schemas"
    yield ""
    yield from paragraph(
        "A grammar cannot enforce some keywords of a JSON schema, such as `uniqueItems`, `contains`, `propertyNames`, "
        "`not` and `unevaluatedProperties`. A `strict` schema with such a keyword is rejected; so is one in "
        "`structured_outputs`, in `guided_json`, or in Anthropic's `output_config.format`, which is always strict. "
        "Without `strict: true` in `response_format`, and in llama.cpp's `json_schema`, Ollama's `format` and a tool's "
        "`parameters`, the keyword is left out and the rest of the schema is enforced. The same applies to a keyword "
        'with an invalid value (`minimum: "0"`, null, an unknown type), to a pattern beyond regular expressions '
        "(look-ahead, backreferences), and to a reference without a target. The reply's header `X-Ballast-Ignored` "
        "names the keywords that were left out, except those of a tool's `parameters`."
    )
    yield ""
    yield "## Tool calls"
    yield ""
    yield from paragraph(
        "The arguments of a call, and the keys of objects in them, may have any order. Each declared key appears at "
        "most once, and all required keys appear. References such as `#`, `#/$defs/x` and `#/properties/x/items` are "
        "relative to the tool's `parameters`. A reference without a target is rejected for a `strict` tool; otherwise "
        "the value is any JSON. If a model writes strings as plain text (GLM, Qwen3-Coder, DeepSeek V3.2), a `strict` "
        "tool's `pattern`, `minLength`, `maxLength` and `format` are enforced too."
    )
    yield ""
    yield from paragraph(
        "Qwen3-Coder ends a string with `</parameter>` on a separate line, so a string cannot contain such a line. A "
        "call with missing or misplaced tags is accepted if its meaning is clear. A call that reaches `max_tokens` has "
        "incomplete JSON as its arguments and the finish reason `length`; its tags never appear in the content."
    )


def statuses(operation: dict[str, Any]) -> str:
    return ", ".join(sorted(operation["responses"]))


def value(schema: dict[str, Any]) -> str:
    """A field's schema in words."""
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(value(one) for one in alternatives if one.get("type") != "null"))
    if "$ref" in schema:
        return f"object `{schema['$ref'].rsplit('/', 1)[1]}`"
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        kind = f"list of {value(schema['items'])}" if schema.get("items") else "list"
    bounds = (
        ("minimum", "maximum", ""),
        ("minItems", "maxItems", " entries"),
        ("minLength", "maxLength", " characters"),
        ("minProperties", "maxProperties", " entries"),
    )
    ranges = (_range(schema.get(low), schema.get(high), unit) for low, high, unit in bounds)
    return ", ".join((kind, *filter(None, ranges)))


def _range(low: Any, high: Any, unit: str) -> str:
    """Bounds in words. Empty if there are none. Bounds that only keep a number within 32 bits are left out."""
    low, high = (each if isinstance(each, int | float) and abs(each) < 2**31 else None for each in (low, high))
    if low is None:
        return "" if high is None else f"at most {high}{unit}"
    if high is None:
        return "not empty" if unit and low == 1 else f"at least {low}{unit}"
    return f"{low} to {high}{unit}"


# --- metrics ------------------------------------------------------------------------------------------------


def metrics() -> Iterator[str]:
    yield "# Prometheus metrics"
    yield ""
    yield from paragraph(
        "`GET /metrics` returns these metrics in Prometheus' format. There, counters end in `_total`, and histograms "
        "have `_bucket`, `_sum` and `_count`. Names with `vllm:` are aliases for dashboards and autoscalers that use "
        "vLLM's names; `--metrics_alias none` disables them."
    )
    yield ""
    rows = [metric_row(family) for family in sorted(families(), key=lambda family: family.name)]
    yield from table(("name", "type", "labels", "meaning"), rows)
    yield ""
    yield from operator_metrics()


def families() -> Iterable[Any]:
    """All metrics of a server that has served requests."""
    shown = Metrics()
    limits = Limits(max_new_tokens=1, max_model_tokens=1, max_batch_size=1, max_queue=1)
    snapshot = Publisher().snapshot(limits, 1, num_arrived=0, has_work=False, predicted_wait_s=0.0)
    snapshot = dataclasses.replace(snapshot, step_costs={"decode": [(1, 1.0)]})
    engine: Any = SimpleNamespace(snapshot=lambda: snapshot, start_seconds={"weights": 1.0})
    build = {"version": "", "isa": "", "device": ""}
    shown.watch(engine, model_name="", build=build, alias=True)
    node = SimpleNamespace(node=0, expert_bytes=1)
    placement: Any = SimpleNamespace(nodes=(node,), mempolicy_available=True, share_local=1.0, pinned=True)
    probe = NumaProbe(lambda *_: placement)
    asyncio.run(probe.report(60))
    shown.registry.register(probe)
    shown.registry.register(VramProbe(("cuda:0",), (1,), lambda _: (1, 1)))
    shown.count_request("", "")
    shown.on_step("decode", 1.0, 1)
    return shown.registry.collect()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
