"""examples/observability, checked without docker and Grafana: with promtool, with the Compose specification, and for
consistency between its files."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

import compose_spec
import yaml

from ballast.config.options import ServerConfig
from devkit.cluster.binaries import ROOT
from devkit.cluster.kube import Object
from devkit.cluster.prometheus import promtool

FOLDER = ROOT / "examples/observability"


def service(name: str) -> Object:
    found: Object = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"][name]
    return found


def mounted(name: str) -> dict[str, Path]:
    """Path in the container → path in the repository, for each mount of a repository file."""
    volumes = [volume.split(":") for volume in service(name)["volumes"]]
    return {inside: (FOLDER / outside).resolve() for outside, inside, *_ in volumes if outside.startswith(".")}


def test_docker_reads_it_and_every_image_has_a_version() -> None:
    compose = compose_spec.PyCompose.from_yaml((FOLDER / "compose.yaml").read_text())
    assert sorted(compose.service_names()) == ["grafana", "prometheus"]
    for name in compose.service_names():
        version = service(name)["image"].rpartition(":")[2]
        assert version.lstrip("v").count(".") == 2, version
        assert all(path.exists() for path in mounted(name).values())
        assert service(name)["network_mode"] == "host"


def test_promtool_accepts_the_prometheus_configuration(tmp_path: Path) -> None:
    for inside, here in mounted("prometheus").items():
        shutil.copy(here, tmp_path / PurePosixPath(inside).name)
    assert "SUCCESS" in promtool("check", "config", "--lint-fatal", "prometheus.yml", folder=tmp_path)
    [job] = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    [static] = job["static_configs"]
    assert static["targets"] == [f"127.0.0.1:{ServerConfig().port}"]
    assert set(static["labels"]) == {"namespace", "service", "pod"}


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    inside = mounted("grafana")
    provisioned = PurePosixPath("/etc/grafana/provisioning")
    [source] = yaml.safe_load(inside[str(provisioned / "datasources/ballast.yaml")].read_text())["datasources"]
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    listens = next(word for word in service("prometheus")["command"] if word.startswith("--web.listen-address="))
    assert source["url"] == f"http://{listens.partition('=')[2]}"
    [provider] = yaml.safe_load(inside[str(provisioned / "dashboards/ballast.yaml")].read_text())["providers"]
    assert provider["type"] == "file"
    boards = inside[provider["options"]["path"]]
    assert {path.name for path in boards.glob("*.json")} == {"fleet.json", "service.json"}
    home = PurePosixPath(service("grafana")["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (boards / home.name).is_file()
