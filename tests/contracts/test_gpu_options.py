"""Options about GPUs with the operator's types; tests/cluster uses the same table for the API server."""

from pathlib import Path

import pytest
import yaml
from builders import service

from ballast.config.options import read_config
from ballast.config.resolve import resolve
from ballast.errors import ConfigError
from ballast_operator.api.gpu_options import MAX_GPUS
from ballast_operator.api.inference_service import SpecError

ROOT = Path(__file__).parents[2]
CASES = yaml.safe_load(Path(__file__).with_name("gpu_options.yaml").read_text())


def requested(case):
    resources = {"cpus": 1, "memory": "1Gi", "gpus": case["gpus"]}
    return service(resources=resources, engine={"extraArgs": case["words"]})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['gpus']} {' '.join(case['words'])}")
def test_options_must_fit_the_gpus(case):
    if case["accepted"]:
        assert requested(case).spec.engine.extra_args == case["words"]
    else:
        with pytest.raises(SpecError, match=rf"resources\.gpus is {case['gpus']}"):
            requested(case)


@pytest.mark.parametrize(
    ("gpus", "option", "value"),
    [(2, "device_split", "3"), (1, "vram_limit", "1GiB,2GiB"), (2, "device_split", "1,1,1")],
)
def test_the_runtime_rejects_the_same_lists(gpus, option, value):
    given = {"device": ",".join(f"cuda:{index}" for index in range(gpus)), option: value}
    with pytest.raises(ConfigError, match=option):
        resolve(read_config(given, {}), default_threads=1)
    with pytest.raises(SpecError):
        requested({"gpus": gpus, "words": [f"--{option}", value]})


def test_the_page_has_the_largest_number_of_gpus():
    assert f"Up to {MAX_GPUS} GPUs divide the layers" in (ROOT / "docs/kubernetes/gpu-nodes.md").read_text()
