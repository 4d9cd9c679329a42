"""KEDA's own definitions accept the samples; `make test` uses shortened definitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import ApiError, Object, documents
from devkit.cluster.service import keda

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
OBJECTS = [
    pytest.param(body, id=f"{sample.stem}-{body['kind']}")
    for sample in sorted(SAMPLES.glob("*.yaml"))
    for body in documents(sample)
    if body["apiVersion"].partition("/")[0].endswith("keda.sh")
]


@pytest.fixture(scope="module", autouse=True)
def kinds(cluster: Cluster) -> Iterator[None]:
    with cluster.kinds(*keda.definitions()):
        yield


@pytest.mark.parametrize("body", OBJECTS)
def test_an_object_of_a_sample_has_only_fields_that_keda_knows(cluster: Cluster, namespace: str, body: Object) -> None:
    resource = cluster.resource_of(body)
    assert cluster.kube.would_accept(resource, body, namespace)["spec"].items() >= body["spec"].items()
    misspelt = {**body, "spec": {**body["spec"], "misspelt": 1}}
    with pytest.raises(ApiError, match=r"spec\.misspelt"):
        cluster.kube.would_accept(resource, misspelt, namespace)
