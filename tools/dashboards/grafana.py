"""The parts of a dashboard, and their JSON for Grafana."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

COLUMNS = 24

OURS = 'namespace=~"$namespace",service=~"$service"'
FLEET = 'namespace=~"$namespace"'
BY_SERVICE = "{{namespace}}/{{service}}"

Json = dict[str, Any]

_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
_STATUS_COLOURS = {"True": "green", "False": "red", "Unknown": "orange"}
_TO_SERVICE = "/d/ballast-service?var-namespace=${__data.fields.namespace}&var-service=${__data.fields.service}&${__url_time_range}"


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel; `kind` is Grafana's type."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    thresholds: tuple[tuple[float, str], ...] = ()
    """Colours by lower threshold. `base` holds below the first one."""
    base: str = "green"
    maximum: float | None = None
    text: str = "auto"
    """For a stat panel, the displayed text: `value`, `name` (its legend), or both with `auto`."""
    columns: tuple[str, ...] = ()
    """For a table, its labels in order. `status` is coloured, and a service links to its dashboard."""


@dataclass(frozen=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A variable at the top: a label's values, or a number that the user types."""

    name: str
    label: str
    query: str
    typed: bool = False


@dataclass(frozen=True)
class Annotation:
    """Times that are marked in every panel: those at which `expr` has a value."""

    name: str
    expr: str
    title: str
    """May contain labels, such as {{pod}}."""
    colour: str


@dataclass(frozen=True)
class Dashboard:
    """One dashboard. `uid` is part of its address and never changes."""

    uid: str
    title: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()


def marks(scope: str) -> tuple[Annotation, ...]:
    """Restarts of engines, and firing alerts."""
    return (
        Annotation("Restarts", f"changes(process_start_time_seconds{{{scope}}}[1m]) > 0", "{{pod}} restarted", "blue"),
        Annotation(
            "Alerts",
            f'ALERTS{{alertname=~"Ballast.+",alertstate="firing",{scope}}}',
            "{{alertname}} {{service}}",
            "red",
        ),
    )


def quantiles(metric: str, by: str = "", scope: str = OURS) -> tuple[Query, ...]:
    """p50, p95 and p99 of a histogram."""
    return tuple(
        Query(f"histogram_quantile({q}, sum by (le{by}) (rate({metric}_bucket{{{scope}}}[$__rate_interval])))", name)
        for q, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    )


def rate(metric: str, by: str = "", scope: str = OURS) -> str:
    """The rate of a counter, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{scope}}}[$__rate_interval]))"


def to_json(board: Dashboard) -> Json:
    """The JSON that Grafana reads."""
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["ballast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [_to_others()],
        "annotations": {"list": [_annotation(each) for each in board.annotations]},
        "templating": {"list": [_datasource(), *map(_variable, board.variables)]},
        "panels": list(_panels(board.rows)),
    }


def _to_others() -> Json:
    """Links to Ballast's other dashboards, with the same time and variables."""
    return {
        "type": "dashboards",
        "title": "Ballast",
        "tags": ["ballast"],
        "asDropdown": False,
        "keepTime": True,
        "includeVars": True,
        "targetBlank": False,
    }


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        "datasource": _SOURCE,
        "enable": True,
        "hide": False,
        "expr": annotation.expr,
        "titleFormat": annotation.title,
        "tagKeys": "namespace,service,pod",
        "iconColor": annotation.colour,
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> Json:
    if variable.typed:
        return {"name": variable.name, "label": variable.label, "type": "textbox", "query": variable.query}
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels(rows: Iterable[Row]) -> Iterable[Json]:
    number, top = 1, 0
    for row in rows:
        yield {"id": number, "type": "row", "title": row.title, "gridPos": _place(0, top, COLUMNS, 1), "panels": []}
        number, top, left = number + 1, top + 1, 0
        height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top = 0, top + height
            height = 4 if panel.kind in ("stat", "gauge") else 8
            yield {"id": number, "gridPos": _place(left, top, panel.width, height), **_panel(panel)}
            number, left = number + 1, left + panel.width
        top += height


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel) -> Json:
    steps = [{"color": panel.base, "value": None}, *({"color": c, "value": v} for v, c in panel.thresholds)]
    defaults: Json = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults["custom"] = {"fillOpacity": 20 if panel.stacked else 0, "stacking": stacking}
    now = panel.kind in ("stat", "gauge", "table")
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": _overrides() if panel.columns else []},
        "options": _options(panel),
        "transformations": [_only(panel.columns)] if panel.columns else [],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": query.expr,
                "legendFormat": query.legend,
                "datasource": _SOURCE,
                "format": "table" if panel.kind == "table" else "time_series",
                "instant": now,
                "range": not now,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        colours = "background" if panel.thresholds else "value"
        return {"textMode": panel.text, "colorMode": colours, "reduceOptions": {"calcs": ["lastNotNull"]}}
    # `False` sorts before `True` and `Unknown`, so problems are at the top.
    return {"sortBy": [{"displayName": "status", "desc": False}]} if panel.columns else {}


def _only(columns: tuple[str, ...]) -> Json:
    """Grafana's `organize`: the columns in order, without time, value and scrape labels."""
    unwanted = ("Time", "Value", "__name__", "job", "instance", "pod", "container", "endpoint")
    return {
        "id": "organize",
        "options": {
            "excludeByName": {name: True for name in unwanted if name not in columns},
            "indexByName": {name: place for place, name in enumerate(columns)},
            "renameByName": {},
        },
    }


def _overrides() -> list[Json]:
    """For a table of conditions: the colours of the status, and the link to a service's dashboard."""
    colours = {status: {"color": colour, "index": n} for n, (status, colour) in enumerate(_STATUS_COLOURS.items())}
    return [
        {
            "matcher": {"id": "byName", "options": "status"},
            "properties": [
                {"id": "mappings", "value": [{"type": "value", "options": colours}]},
                {"id": "custom.cellOptions", "value": {"type": "color-background"}},
            ],
        },
        {
            "matcher": {"id": "byName", "options": "service"},
            "properties": [{"id": "links", "value": [{"title": "Open the service", "url": _TO_SERVICE}]}],
        },
    ]
