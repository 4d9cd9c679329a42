"""`ballast plan`: where each tensor goes, how much memory the model needs, and whether that is available."""

from ballast.plan.checked_model import load_checked_text, open_checked
from ballast.plan.command import device_settings, plan_for, planned, planned_settings, run, settle
from ballast.plan.host import make_plan
from ballast.plan.memory import MemoryPlan, Numbers
from ballast.plan.reports.check import check_memory
from ballast.plan.reports.report import render, rule_lines, to_json

__all__ = [
    "MemoryPlan",
    "Numbers",
    "check_memory",
    "device_settings",
    "load_checked_text",
    "make_plan",
    "open_checked",
    "plan_for",
    "planned",
    "planned_settings",
    "render",
    "rule_lines",
    "run",
    "settle",
    "to_json",
]
