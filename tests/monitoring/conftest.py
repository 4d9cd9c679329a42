"""Fixtures for dashboards and alerts, and the Prometheus that evaluates them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from devkit.cluster.helm import Helm
from devkit.cluster.kube import Object


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Object:
    """The alert groups as the chart installs them."""
    helm = Helm(tmp_path_factory.mktemp("helm"))
    objects = helm.template("--api-versions=monitoring.coreos.com/v1/PrometheusRule")
    (found,) = [body for body in objects if body["kind"] == "PrometheusRule"]
    spec: Object = found["spec"]
    return spec


@pytest.fixture(scope="session")
def rules_file(tmp_path_factory: pytest.TempPathFactory, rules: Object) -> Path:
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    return path


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)
