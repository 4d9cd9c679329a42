import asyncio

import pytest
from builders import service

from ballast_operator.child_options import ChildOptions
from ballast_operator.cli import _parser
from ballast_operator.cluster.api import Api
from ballast_operator.cluster.kinds import POD
from ballast_operator.control.applying.limited_api import LimitedApi, QuotaError
from ballast_operator.limits.quotas import Quotas, usage, why_over_quota
from ballast_operator.resources.pod import Attempt, build_pod


def pod(**spec):
    return build_pod(service(**spec), ChildOptions(), Attempt(0))


def test_a_namespace_has_its_own_quota_or_the_default():
    quotas = Quotas({"team": {"gpus": "4"}, "*": {"pods": "1"}})
    assert (quotas.of("team"), quotas.of("other")) == ({"gpus": "4"}, {"pods": "1"})
    assert Quotas({"team": {"gpus": "4"}}).of("other") == {}


def test_a_pod_requests_the_sum_of_its_containers():
    sidecar = {"name": "log", "image": "x", "cpu": "500m", "memory": "1Gi"}
    resources = {"cpus": 4, "memory": "10Gi", "gpus": 1, "hugepages1Gi": 2}
    found = usage(pod(resources=resources, sidecars=[sidecar]))
    assert {key: float(amount) for key, amount in found.items()} == {
        "pods": 1,
        "cpus": 4.5,
        "gpus": 1,
        "memory": 13 * 2**30,
    }
    claims = {"claims": [{"name": "gpu", "resourceClaimTemplateName": "one"}], "gpuClaim": "gpu"}
    assert usage(pod(resources={"cpus": 1, "memory": "1Gi", **claims}))["gpus"] == 1


def test_all_gpus_of_a_pod_count_those_of_claims_too():
    base = {"cpus": 1, "memory": "1Gi", "gpus": 2}
    assert usage(pod(resources=base))["gpus"] == 2
    gpu, net = ({"name": name, "resourceClaimTemplateName": name} for name in ("gpu", "net"))
    assert usage(pod(resources={**base, "claims": [gpu, net], "gpuClaim": "gpu"}))["gpus"] == 3
    assert usage(pod(resources={**base, "claims": [net]}))["gpus"] == 3
    lowered = pod(resources={**base, "claims": [gpu], "gpuClaim": "gpu"})
    lowered["metadata"]["annotations"]["serving.ballast.dev/claimed-gpus"] = "0"
    assert usage(lowered)["gpus"] == 1, "each claim counts, as in pods of older operators"
    two = pod(resources=base)
    assert "gpus: 2 of 3 are used and the pod requests 2" in str(why_over_quota({"gpus": "3"}, [two], two))


def test_an_exceeded_quota_is_reported_with_its_numbers():
    one = pod(resources={"cpus": 4, "memory": "10Gi", "gpus": 1})
    assert why_over_quota({"gpus": "2", "cpus": "8", "memory": "20Gi", "pods": "2"}, [one], one) is None
    message = why_over_quota({"gpus": "1", "memory": "19Gi", "cpus": "8"}, [one], one)
    assert (
        message
        == "gpus: 1 of 1 are used and the pod requests 1; memory: 10.0Gi of 19Gi are used and the pod requests 10.0Gi"
    )
    without = pod(resources={"cpus": 4, "memory": "10Gi", "gpus": 0})
    assert why_over_quota({"gpus": "1"}, [one, one], without) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("team", "'' in 'team' is not a quota"),
        ("team:disks=1", "'disks' in 'team:disks=1' is not a quota; use pods, cpus, gpus, memory"),
        ("team:gpus=x", "gpus in 'team:gpus=x': 'x' is not a quantity"),
        ("Team:gpus=1", "'Team' is not a valid name of a namespace"),
    ],
)
def test_an_invalid_quota_is_rejected(text, message, capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", "--quota", text])
    assert message in capsys.readouterr().err


def test_quotas_are_read_by_namespace():
    read = _parser().parse_args(["run", "--quota", "team-a:gpus=4,memory=2Ti", "--quota=*:pods=1"]).quota
    assert dict(read) == {"team-a": {"gpus": "4", "memory": "2Ti"}, "*": {"pods": "1"}}


@pytest.mark.parametrize("verb", ["create", "try_create"])
def test_only_replicas_are_limited(monkeypatch, verb):
    running, sent = pod(), []

    async def answer(api, kind, body, namespace=None):
        sent.append(body["metadata"]["name"])
        return body

    async def listed(api, kind, namespace):
        return [running, {**running, "metadata": {**running["metadata"], "name": "chat-image-check"}}]

    monkeypatch.setattr(Api, verb, answer)
    monkeypatch.setattr(Api, "list_all", listed)
    api = LimitedApi(Quotas({"*": {"pods": "2"}}), lambda verb, code, seconds: None)
    ask = getattr(api, verb)
    asyncio.run(ask(POD, build_pod(service(replicas=2), ChildOptions(), Attempt(1)), "ns"))
    for name in ("chat-image-check", "ballast-cache-0123-abcde"):
        asyncio.run(ask(POD, {**running, "metadata": {**running["metadata"], "name": name}}, "ns"))
    assert len(sent) == 3
    api = LimitedApi(Quotas({"*": {"pods": "1"}}), lambda verb, code, seconds: None)
    with pytest.raises(QuotaError):
        asyncio.run(getattr(api, verb)(POD, build_pod(service(replicas=2), ChildOptions(), Attempt(1)), "ns"))
