"""What restarts pods, and what does not."""

import pytest

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.spec_hash import spec_hash

# As the API server keeps it: with the defaults of the CRD under which it was written.
SPEC = {
    "model": {"source": {"pvc": {"claimName": "models"}}, "ggufPath": "r1"},
    "engine": {"maxNewTokens": 1024, "cacheLens": 32768},
    "resources": {"cpus": 32, "memory": "440Gi"},
}


def hash_of(**changes):
    body = {"metadata": {"name": "x", "namespace": "y"}, "spec": {**SPEC, **changes}}
    return spec_hash(InferenceService.from_api(body).spec)


def test_the_hash_of_a_spec_stays_what_released_operators_wrote():
    assert hash_of() == "a990969cdfc8c3bf"


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"maxBatchSize": 4, "maxNewTokens": 1024, "cacheLens": 32768}},
        {"endpoint": {"port": 10002}},
        {"replicas": 3},
        {"numa": {"policy": "AllNodes", "enforcement": "Require"}},
        {"endpoint": {"networkPolicy": {}}},
    ],
    ids=str,
)
def test_defaults_written_out_and_what_pods_do_not_depend_on_restart_nothing(changes):
    assert hash_of(**changes) == hash_of()


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "other"},
        {"engine": {"maxNewTokens": 1024, "cacheLens": 32769}},
        {"engine": {"maxNewTokens": 1024}},
        {"engine": {"cacheLens": 32768}},
        {"engine": {}},
        {"engine": {**SPEC["engine"], "drainTimeoutSeconds": 1}},
        {"engine": {**SPEC["engine"], "placementRules": {"inline": "a"}}},
        {"resources": {"cpus": 31, "memory": "440Gi"}},
        {"endpoint": {"port": 8080}},
        {"endpoint": {"auth": {"secretRef": {"name": "keys"}}}},
        {"scheduling": {"nodeSelector": {"a": "b"}}},
        {"podMetadata": {"labels": {"a": "b"}}},
    ],
    ids=str,
)
def test_what_a_pod_is_made_of_restarts_it(changes):
    assert hash_of(**changes) != hash_of()
