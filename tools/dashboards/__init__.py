"""The Grafana dashboards of the chart, as data; tools/chart.py writes them as JSON.

A panel's description says what it shows and what to do when it looks wrong.
"""

from dashboards.fleet import ALL
from dashboards.grafana import to_json
from dashboards.service import SERVICE

DASHBOARDS = {"service": SERVICE, "fleet": ALL}

__all__ = ["DASHBOARDS", "to_json"]
