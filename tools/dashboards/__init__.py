"""The chart's Grafana dashboards as data. tools/chart.py writes them as JSON.

A panel's description explains its content and what to do if it looks wrong.
"""

from tools.dashboards.fleet import ALL
from tools.dashboards.grafana import to_json
from tools.dashboards.service import SERVICE

DASHBOARDS = {"service": SERVICE, "fleet": ALL}

__all__ = ["DASHBOARDS", "to_json"]
