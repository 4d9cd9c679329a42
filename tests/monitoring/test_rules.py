"""Alerts, evaluated by promtool: each fires in its scenario, none fires for a healthy fleet, and each has a page with
instructions."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from devkit.cluster.binaries import ROOT
from devkit.cluster.helm import Helm
from devkit.cluster.kube import Object
from devkit.cluster.prometheus import promtool

SCENARIOS = Path(__file__).with_name("rules_test.yaml")


def alerts(rules: Object) -> list[Object]:
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_the_rules_are_sound(rules_file: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint-fatal", rules_file.name, folder=rules_file.parent)


def test_each_alert_fires_on_its_scenario_and_is_silent_on_a_healthy_fleet(rules: Object, rules_file: Path) -> None:
    shutil.copy(SCENARIOS, rules_file.parent)
    promtool("test", "rules", SCENARIOS.name, folder=rules_file.parent)
    fires: set[str] = set()
    silent: set[str] = set()
    for scenario in yaml.safe_load(SCENARIOS.read_text())["tests"]:
        for case in scenario["alert_rule_test"]:
            (fires if case["exp_alerts"] else silent).add(case["alertname"])
    # promtool treats the name of a missing alert like an alert that does not fire.
    assert fires == silent == {rule["alert"] for rule in alerts(rules)}


def test_each_alert_has_a_severity_and_a_page(rules: Object) -> None:
    for rule in alerts(rules):
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert (ROOT / rule["annotations"]["runbook"]).is_file(), rule["alert"]


def test_pages_become_links_where_the_documentation_has_an_address(helm: Helm) -> None:
    found = helm.template(
        "--api-versions=monitoring.coreos.com/v1/PrometheusRule",
        "--set=monitoring.prometheusRule.runbookBaseUrl=https://docs.test/ballast/",
    )
    (rules,) = [body["spec"] for body in found if body["kind"] == "PrometheusRule"]
    links = [rule["annotations"]["runbook_url"] for rule in alerts(rules)]
    assert links[0] == "https://docs.test/ballast/kubernetes/alerts/engine-stalled/"
    assert all(link.startswith("https://docs.test/ballast/kubernetes/") for link in links)
