"""How the dashboards show problems: colours, links and marks. tests/cluster tests the results of their queries with a
real Prometheus."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools.dashboards import DASHBOARDS, to_json

BOARDS = {name: to_json(board) for name, board in DASHBOARDS.items()}


def panel(board: str, title: str) -> dict[str, Any]:
    [found] = [each for each in BOARDS[board]["panels"] if each["title"] == title]
    return dict(found)


def steps(board: str, title: str) -> list[tuple[float | None, str]]:
    return [
        (step["value"], step["color"]) for step in panel(board, title)["fieldConfig"]["defaults"]["thresholds"]["steps"]
    ]


def test_a_service_that_is_not_ready_is_red() -> None:
    assert steps("service", "Ready") == [(None, "red"), (1, "green")]
    assert panel("service", "Ready")["options"]["colorMode"] == "background"
    assert steps("fleet", "Not ready") == [(None, "green"), (1, "red")]


def test_conditions_are_a_table_with_false_ones_red_and_first() -> None:
    table = panel("fleet", "Conditions")
    assert (table["type"], table["targets"][0]["format"]) == ("table", "table")
    assert table["options"]["sortBy"] == [{"displayName": "status", "desc": False}]
    [organize] = table["transformations"]
    assert list(organize["options"]["indexByName"]) == ["namespace", "service", "condition", "status", "reason"]
    status, _ = table["fieldConfig"]["overrides"]
    [mapping] = status["properties"][0]["value"]
    assert {value: shown["color"] for value, shown in mapping["options"].items()} == {
        "True": "green",
        "False": "red",
        "Unknown": "orange",
    }


def test_services_that_never_ran_and_standalone_servers_can_be_selected() -> None:
    queries = {each["name"]: each["query"] for each in BOARDS["service"]["templating"]["list"] if "query" in each}
    for name in ("namespace", "service"):
        assert "ballast_operator_service_condition|ballast_batch_slots" in str(queries[name])


@pytest.mark.parametrize("board", BOARDS)
def test_no_panel_mixes_durations_with_other_numbers(board: str) -> None:
    for each in BOARDS[board]["panels"]:
        requested = [target["expr"] for target in each.get("targets", ())]
        durations = [bool(re.search(r"_seconds(_bucket|_sum)?\b", expr)) for expr in requested]
        assert len(set(durations)) <= 1, each["title"]


def test_a_service_s_name_leads_to_its_dashboard() -> None:
    _, service = panel("fleet", "Conditions")["fieldConfig"]["overrides"]
    [link] = service["properties"][0]["value"]
    assert link["url"].startswith(f"/d/{BOARDS['service']['uid']}?")
    variables = {variable["name"] for variable in BOARDS["service"]["templating"]["list"]}
    assert set(re.findall(r"var-(\w+)=", link["url"])) <= variables


@pytest.mark.parametrize("board", BOARDS)
def test_restarts_and_alerts_are_marked_and_the_other_dashboard_is_one_click_away(board: str) -> None:
    assert [mark["name"] for mark in BOARDS[board]["annotations"]["list"]] == ["Restarts", "Alerts"]
    [link] = BOARDS[board]["links"]
    assert link["tags"] == BOARDS[board]["tags"]
    assert (link["keepTime"], link["includeVars"]) == (True, True)
