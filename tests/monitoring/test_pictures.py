"""The documentation's pictures of the dashboards: the panels that they show.

tests/cluster tests that Prometheus returns data for their queries."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from tools.dashboards.answers import Choices, Series, Window, answers, filled_in, marks
from tools.dashboards.drawing import draw
from tools.dashboards.pictures import PICTURES, boards
from tools.dashboards.units import shown

BOARDS = boards()
WINDOW = Window(1000, 1008, 2)
CHOICES = Choices("15s")
SVG = "{http://www.w3.org/2000/svg}"


def titles(svg: str) -> dict[str, str]:
    """The title of each panel's group, by its id."""
    return {
        group.attrib["id"]: "".join(group.itertext()).strip()
        for group in ET.fromstring(svg).iter(f"{SVG}g")
        if group.attrib.get("id", "").startswith("panel-")
    }


@pytest.mark.parametrize("name", BOARDS)
def test_the_committed_picture_has_every_panel_of_the_dashboard(name: str) -> None:
    wanted = {f"panel-{panel['id']}": panel["title"] for panel in BOARDS[name]["panels"]}
    found = titles((PICTURES / f"{name}.svg").read_text(encoding="utf-8"))
    assert found == wanted, "run: make dashboard-pictures"


def test_a_panel_is_drawn_by_its_type_and_shows_missing_data() -> None:
    board = BOARDS["fleet"]
    found = answers(board, Constant(), WINDOW, CHOICES)
    svg = draw(board, found, marks(board, Constant(), WINDOW, CHOICES), WINDOW)
    assert titles(svg) == {f"panel-{panel['id']}": panel["title"] for panel in board["panels"]}
    assert "No data" not in svg
    assert draw(board, dict.fromkeys(found, ()), [], WINDOW).count("No data") == len(found)


class Constant:
    """A Prometheus in which every query returns two series: one with a gap, and one with NaN."""

    def query(self, _: str) -> list[dict[str, object]]:
        return [{"metric": {"pod": "a"}, "value": [1008, "0.5"]}]

    def query_range(self, _: str, start: float, end: float, step_s: float) -> list[dict[str, object]]:
        assert (start, end, step_s) == (1000, 1008, 2)
        return [
            {"metric": {"pod": "a"}, "values": [[1000, "1"], [1002, "2"], [1008, "3"]]},
            {"metric": {"pod": "b"}, "values": [[1000, "NaN"], [1002, "+Inf"]]},
        ]


def test_gaps_stay_gaps_and_nans_are_not_drawn() -> None:
    board = BOARDS["service"]
    [queue] = [panel["id"] for panel in board["panels"] if panel["title"] == "Queue"]
    one, other = answers(board, Constant(), WINDOW, CHOICES)[queue]
    assert (one.legend, other.legend) == ("a", "b")
    assert [value for value in one.values if not math.isnan(value)] == [1, 2, 3]
    assert [math.isnan(value) for value in one.values] == [False, False, True, True, False]
    assert all(map(math.isnan, other.values))


def test_an_annotation_is_drawn_where_its_query_first_has_a_value() -> None:
    assert [(mark.colour, mark.time) for mark in marks(BOARDS["fleet"], Constant(), WINDOW, CHOICES)] == [
        (colour, time) for colour in ("blue", "red") for time in (1000, 1008, 1000)
    ]


def test_selected_variables_are_inserted_into_queries() -> None:
    query = 'rate(a{namespace=~"$namespace",service=~"$service"}[$__rate_interval]) / $node_bandwidth'
    chosen = Choices("15s", {"service": "chat"})
    assert filled_in(query, BOARDS["service"], chosen) == 'rate(a{namespace=~".*",service=~"chat"}[15s]) / 200'
    with pytest.raises(KeyError, match="pod"):
        filled_in("$pod", BOARDS["service"], chosen)


def test_a_table_reports_the_number_of_omitted_rows() -> None:
    board = BOARDS["fleet"]
    [table] = [panel["id"] for panel in board["panels"] if panel["type"] == "table"]
    found = {panel["id"]: [] for panel in board["panels"]}
    found[table] = [Series("", {"service": f"s{number}", "status": str(number > 0)}, (1.0,)) for number in range(30)]
    svg = draw(board, found, [], WINDOW)
    rows = [text for text in ET.fromstring(svg).itertext() if text.strip() in {f"s{number}" for number in range(30)}]
    assert rows[0].strip() == "s0", "false values are sorted first"
    assert f"and {30 - len(rows)} more rows" in svg


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.256, "percentunit", "25.6 %"),
        (0.0042, "s", "4.2 ms"),
        (150, "s", "2.5 min"),
        (0, "s", "0 s"),
        (3 * 2**30, "bytes", "3 GiB"),
        (2e9, "Bps", "2 GB/s"),
        (1.25, "reqps", "1.25 req/s"),
        (12345, "short", "12.3k"),
    ],
)
def test_numbers_have_their_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_every_unit_of_the_dashboards_is_known() -> None:
    for board in BOARDS.values():
        for panel in board["panels"]:
            if panel["type"] != "row":
                shown(1, panel["fieldConfig"]["defaults"]["unit"])
