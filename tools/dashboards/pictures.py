"""Draw the dashboards for the documentation: a fleet under load, queried through a real Prometheus.

    python -m tools.dashboards.pictures [DIRECTORY]      default: docs/pictures/dashboards

Takes five minutes, and needs Prometheus and the cluster's programs (`make prometheus cluster-binaries`). The pictures
are not screenshots of Grafana: the panels come from the chart's files, the lines from Prometheus.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tools.dashboards.answers import Choices, Json, Mark, Series, Source, Window, answers, marks
from tools.dashboards.staged import SERVICES, fleet, load

ROOT = Path(__file__).resolve().parents[2]
BOARDS = ROOT / "charts/ballast/dashboards"
PICTURES = ROOT / "docs/pictures/dashboards"
LOAD_S, STEP_S = 240, 2
RATE_INTERVAL = "15s"
CHOSEN = {"service": {"service": SERVICES[0]}}
"""Values of the dashboard's variables."""


def main(arguments: list[str]) -> int:
    from tools.dashboards.drawing import draw  # imports matplotlib, which some tests do not need

    folder = Path(arguments[0]) if arguments else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as working, fleet(Path(working)) as (prometheus, servers):
        with load(servers):
            start = time.time()
            time.sleep(LOAD_S)
            window = Window(start, start + LOAD_S, STEP_S)
            panels = [(name, board, *ask(prometheus, name, board, window)) for name, board in boards().items()]
    for name, board, found, moments in panels:
        (folder / f"{name}.svg").write_text(draw(board, found, moments, window), encoding="utf-8")
    return 0


def ask(source: Source, name: str, board: Json, window: Window) -> tuple[dict[int, list[Series]], list[Mark]]:
    """The series in the panels of the dashboard, and the times that are marked in them."""
    choices = Choices(RATE_INTERVAL, CHOSEN.get(name, {}))
    return answers(board, source, window, choices), marks(board, source, window, choices)


def boards() -> dict[str, Json]:
    """The chart's dashboards, by file name."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(BOARDS.glob("*.json"))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
