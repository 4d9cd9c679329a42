"""Values of resources.memory with the operator's types; tests/cluster uses the same table for the API server."""

from pathlib import Path

import pytest
import yaml
from builders import service

from ballast.plan.gpus.device import HOST_PROGRAM_BYTES
from ballast_operator.api.inference_service import SpecError
from ballast_operator.api.spec import Resources
from ballast_operator.quantity import parse_bytes

CASES = yaml.safe_load(Path(__file__).with_name("memory.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["memory"])
def test_memory_is_parsed_as_by_the_api_server(case):
    resources = {"cpus": 1, "memory": case["memory"]}
    if "bytes" in case:
        assert service(resources=resources).spec.resources.memory == case["memory"]
        assert parse_bytes(case["memory"]) == case["bytes"]
    else:
        with pytest.raises(SpecError, match=r"^spec\.resources\.memory: "):
            service(resources=resources)


def test_the_field_and_the_page_have_the_planned_memory_of_the_program():
    message = f"{HOST_PROGRAM_BYTES >> 30} GiB for the program"
    assert message in (Resources.model_fields["memory"].description or "")
    assert message in (Path(__file__).parents[2] / "docs/kubernetes/gpu-nodes.md").read_text()
