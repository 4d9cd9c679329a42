"""Writes docs/reference/ from the code: options, endpoints, fields of requests, tested clients, metrics, the resource,
the chart, the operator.

    python -m tools.reference [--check]

With --check nothing is written; the exit code says whether the pages are up to date.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.chart import readme
from tools.pages import NOTE, is_file_with, metric_row, paragraph, table
from tools.reference.clients import clients_page
from tools.reference.cluster import cache_page, operator_metrics, operator_page, resource_page
from tools.reference.fields import request_fields

from ballast.config.options import OPTIONS, SECTIONS, Option
from ballast.engine.engine import Snapshot
from ballast.server.app import admin_routers, api_app, api_routers
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.server.telemetry.vram_metrics import VramProbe
from ballast.server.wire.openapi import BODY_ERRORS, EVERY_ERROR

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
            print(f"docs/: {', '.join(old)} no longer say what the code says; run: make docs-reference")
        return 1 if old else 0
    for path, text in expected.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


# --- options ------------------------------------------------------------------------------------------------


def options() -> Iterator[str]:
    yield "# Options of `ballast serve`"
    yield ""
    yield from paragraph(
        "The command line wins over the environment, the environment over the YAML file that `--config` (or "
        "`BALLAST_CONFIG`) names, and that over the default. `--max_batch_size 8` is `BALLAST_MAX_BATCH_SIZE=8` in "
        "the environment and `max_batch_size: 8` in the file; hyphens may stand for underscores. A flag has an "
        "opposite, `--no_force_think`. What can be repeated is separated by commas in the environment and is a list "
        "in the file. Values in the file are taken as they are written: `off`, `1.10` and `22:22` mean what they "
        "mean on the command line. A key that is no option is refused. A `BALLAST_` variable that is no option is "
        "named in a warning, with the nearest option; it is not refused, since Kubernetes and other programs set such "
        "variables too."
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
    yield "# Endpoints"
    yield ""
    yield from paragraph(
        "The same as a machine reads it: `GET /openapi.json` of a running server. With `--admin_port`, the endpoints "
        "of the second table are on that port alone, except where the first lists them as well. With "
        "`--api_key_file`, everything on the API's port but `/livez`, `/readyz`, `/health`, `/ping` and the page at "
        "`/` wants a key. Paths of OpenAI's API are understood without `/v1` too."
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
        'Every error is `{"error": {"message", "type", "param", "code"}}`; `param` names the field that is to blame, '
        "and `code` is one of [these](errors.md). Below `/v1/messages` errors are in Anthropic's form, and below "
        '`/api/` in Ollama\'s: `{"error": "MESSAGE"}`.'
    )
    yield ""
    yield from table(("status", "why"), [(str(n), why) for n, why in sorted({**EVERY_ERROR, **BODY_ERRORS}.items())])
    yield ""
    yield "## Priority"
    yield ""
    yield from paragraph(
        "`priority` of a request has an effect as far as `--client_priority`, or the line of its key in "
        "`--api_key_file`, allows: lower numbers are served first, a number outside of the range is a 400, and without "
        "one the request gets the number of the range that is nearest to 0. Where nothing is allowed, the field is "
        "ignored. A field that was ignored is named in the reply's header `X-Ballast-Ignored` and in the log's "
        "`ignored_fields`. [What happens to each field](request-fields.md)."
    )
    yield ""
    yield "## Citations"
    yield ""
    yield from paragraph(
        "Text blocks of `/v1/messages` have `citations: []`, whole and streamed, since nothing is cited here. "
        "Anthropic's published schema requires the key and takes a list or null; `@ai-sdk/anthropic` 3 takes a list or "
        "no key, and fails on null. The empty list satisfies both."
    )
    yield ""
    yield "## Schemas"
    yield ""
    yield from paragraph(
        "A keyword of a JSON schema that no grammar can hold a reply to (`uniqueItems`, `contains`, `propertyNames`, "
        "`not`, `unevaluatedProperties` among them) is refused by name where the schema is `strict`, in "
        "`structured_outputs` and `guided_json`, and in Anthropic's `output_config.format`, which is always strict. "
        "Without `strict: true`, in `response_format`, in `json_schema` of llama.cpp's API, in Ollama's `format` and "
        "in a tool's `parameters`, it is left out and the rest of the schema is enforced. The same happens to a "
        'keyword whose value is wrong (`minimum: "0"`, null, an unknown type), to a pattern beyond regular expressions '
        "(look-ahead, backreferences), and to a reference that leads nowhere. The reply's header `X-Ballast-Ignored` "
        "names what was left out, but for a tool's `parameters`."
    )
    yield ""
    yield "## Tool calls"
    yield ""
    yield from paragraph(
        "The arguments of a call, and the keys of objects in them, come in any order; each declared key comes at most "
        "once, and the required ones come. References such as `#`, `#/$defs/x` and `#/properties/x/items` are relative "
        "to the tool's `parameters`. One that leads nowhere is refused for a `strict` tool; otherwise the value is any "
        "JSON. Where a model writes strings as bare text (GLM, Qwen3-Coder, DeepSeek V3.2), a `strict` tool's "
        "`pattern`, `minLength`, `maxLength` and `format` are enforced as well."
    )
    yield ""
    yield from paragraph(
        "Qwen3-Coder ends a string with `</parameter>` on a line of its own, so a string cannot contain such a line. A "
        "call that the model writes with missing or misplaced tags is read if what it says is clear. A call that "
        "reaches `max_tokens` has incomplete JSON as its arguments and the finish reason `length`; nothing of its tags "
        "is content."
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
    limits = {"minimum": "at least", "maximum": "at most", "minItems": "at least", "maxItems": "at most"}
    limits |= {"minLength": "at least", "maxLength": "at most", "maxProperties": "at most"}
    unit = {"Items": " entries", "Properties": " entries", "Length": " characters"}
    said = [
        f"{words} {schema[key]}{next((u for end, u in unit.items() if key.endswith(end)), '')}"
        for key, words in limits.items()
        if isinstance(schema.get(key), (int, float)) and abs(schema[key]) < 2**31
    ]
    return ", ".join((kind, *said))


# --- metrics ------------------------------------------------------------------------------------------------


def metrics() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield from paragraph(
        "`GET /metrics`, for Prometheus. Counters end in `_total` and histograms have `_bucket`, `_sum` and `_count` "
        "on the page. The names under `vllm:` repeat others for dashboards and autoscalers that know those; "
        "`--metrics_alias none` leaves them out."
    )
    yield ""
    rows = [metric_row(family) for family in sorted(families(), key=lambda family: family.name)]
    yield from table(("name", "type", "labels", "meaning"), rows)
    yield ""
    yield from operator_metrics()


def families() -> Iterable[Any]:
    """All metrics of a server that has done something."""
    shown = Metrics()
    numbers = {field.name: 1 for field in dataclasses.fields(Snapshot)}
    others = {"switched_off": {}, "tiers": (), "step_costs": {"decode": [(1, 1.0)]}}
    snapshot = SimpleNamespace(**numbers | others)
    engine: Any = SimpleNamespace(snapshot=lambda: snapshot, load_progress=1.0, start_seconds={"weights": 1.0})
    build = {"version": "", "isa": "", "device": ""}
    shown.watch(engine, model_name="", build=build, alias=True)
    node = SimpleNamespace(node=0, expert_bytes=1)
    placement: Any = SimpleNamespace(nodes=(node,), mempolicy_available=True, share_local=1.0, pinned=True)
    probe = NumaProbe(lambda *_: placement)
    asyncio.run(probe.report(60))
    shown.registry.register(probe)
    shown.registry.register(VramProbe("cuda:0", 1, lambda _: (1, 1)))
    shown.count_request("", "")
    shown.on_step("decode", 1.0, 1)
    return shown.registry.collect()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
