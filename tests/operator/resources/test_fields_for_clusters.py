"""Fields for clusters with special requirements for pods and Services: users, devices, probes, load balancers."""

import pytest
from builders import service

from ballast_operator.api.inference_service import SpecError
from ballast_operator.child_options import ChildOptions
from ballast_operator.desired import desired_children, kinds_missing
from ballast_operator.resources.pod import Attempt, build_pod
from ballast_operator.resources.service import build_service, external_url

GPU = {"cpus": 2, "memory": "1Gi", "gpus": 1}
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "gpus"}


def built(**spec):
    return build_pod(service(**spec), ChildOptions(), Attempt(0))["spec"]


def test_users_and_groups_come_from_the_image_the_spec_or_the_cluster():
    ids = ("runAsUser", "runAsGroup", "fsGroup")
    plain = built()["securityContext"]
    assert [plain[name] for name in ids] == [10001, 10001, 10001]
    given = built(securityContext={"runAsUser": 1_000_660_000, "supplementalGroups": [5]})["securityContext"]
    assert [given[name] for name in ids] == [1_000_660_000, 10001, 10001]
    assert given["supplementalGroups"] == [5]
    left = built(securityContext={"assignedByCluster": True})["securityContext"]
    assert not set(ids) & left.keys()
    for context in (plain, given, left):
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    with pytest.raises(SpecError, match="must not be set: the cluster chooses them"):
        service(securityContext={"assignedByCluster": True, "fsGroup": 1})
    with pytest.raises(SpecError, match="runAsUser"):
        service(securityContext={"runAsUser": 0})


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_pod_gets_all_gpus_and_the_engine_uses_them(gpus):
    (engine,) = built(resources={**GPU, "gpus": gpus})["containers"]
    for amounts in (engine["resources"]["requests"], engine["resources"]["limits"]):
        assert amounts["nvidia.com/gpu"] == str(gpus)
    assert engine["args"][engine["args"].index("--device") + 1] == "cuda"


def test_a_claim_brings_the_gpu_instead_of_a_device_plugin():
    pod = built(resources={**GPU, "claims": [{**CLAIM, "request": "one"}], "gpuClaim": "gpu"})
    (engine,) = pod["containers"]
    assert pod["resourceClaims"] == [CLAIM]
    assert engine["resources"]["claims"] == [{"name": "gpu", "request": "one"}]
    assert engine["resources"]["limits"] == engine["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    assert engine["args"][engine["args"].index("--device") + 1] == "cuda"


def test_a_claim_without_a_gpu_is_used_together_with_the_device_plugin():
    (engine,) = built(resources={**GPU, "claims": [CLAIM]})["containers"]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert engine["resources"]["claims"] == [{"name": "gpu"}]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"claims": [CLAIM], "gpuClaim": "other"}, "gpuClaim"),
        ({"claims": [CLAIM], "gpuClaim": "gpu", "gpus": 0}, "gpus must not be 0"),
        ({"claims": [CLAIM, CLAIM]}, "gpu is listed twice"),
        ({"gpus": 9}, "less than or equal to 8"),
        ({"gpus": 2, "cpuFallback": True}, "cpuFallback must not be set with several GPUs"),
        ({"claims": [{"name": "gpu"}]}, "exactly one of resourceClaimName and"),
        ({"claims": [{**CLAIM, "resourceClaimName": "x"}]}, "exactly one of resourceClaimName and"),
    ],
)
def test_invalid_claims_are_rejected(requested, message):
    with pytest.raises(SpecError, match=message):
        service(resources={**GPU, **requested})


def test_probes_have_the_timeouts_of_the_spec():
    (engine,) = built(probes={"liveness": {"timeoutSeconds": 30}})["containers"]
    assert engine["livenessProbe"] == {
        "httpGet": {"path": "/livez", "port": "admin"},
        "periodSeconds": 10,
        "timeoutSeconds": 30,
        "failureThreshold": 3,
    }
    assert engine["readinessProbe"]["failureThreshold"] == 2


def test_kernels_are_kept_on_a_directory_of_the_node():
    pod = built(kernelCache={"hostPath": "/var/cache/kernels"})
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "kernels"]
    assert volume["hostPath"] == {"path": "/var/cache/kernels", "type": "Directory"}
    for requested in ({}, {"hostPath": "/x", "claimName": "x"}):
        with pytest.raises(SpecError, match="exactly one of claimName and hostPath"):
            service(kernelCache=requested)


def test_an_external_service_sets_fields_that_the_api_server_would_default():
    made = build_service(service(endpoint={"service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}}}))
    assert made["spec"]["type"] == "LoadBalancer"
    assert made["spec"]["externalTrafficPolicy"] == "Cluster"
    assert made["metadata"]["annotations"] == {"a/b": "c"}
    assert "externalTrafficPolicy" not in build_service(service())["spec"]


def admin_peers(options, **endpoint):
    requested = service(endpoint={"networkPolicy": {}, **endpoint})
    (policy,) = [it for it in desired_children(requested, options) if it["kind"] == "NetworkPolicy"]
    (rule,) = [it for it in policy["spec"]["ingress"] if it["ports"][0]["port"] == "admin"]
    return rule["from"][:-1]  # the operator is last


def test_scrapers_are_those_of_the_operators_options():
    labels = {"app": "vmagent"}
    (anywhere,) = admin_peers(ChildOptions(scraper_labels=labels))
    assert anywhere == {"podSelector": {"matchLabels": labels}, "namespaceSelector": {}}
    found = admin_peers(ChildOptions(scraper_labels=labels, scraper_namespaces=("a", "b")))
    assert [it["namespaceSelector"]["matchLabels"] for it in found] == [
        {"kubernetes.io/metadata.name": "a"},
        {"kubernetes.io/metadata.name": "b"},
    ]


def test_without_picker_labels_any_pod_of_the_namespace_is_admitted():
    (_, picker) = admin_peers(ChildOptions(), inferencePool={"pickerName": "picker"})
    assert picker == {"podSelector": {}}


def test_a_pool_is_created_if_it_is_requested_and_the_cluster_has_the_kind():
    requested = service(endpoint={"port": 9000, "inferencePool": {"pickerName": "picker"}})
    (pool,) = [it for it in desired_children(requested, ChildOptions()) if it["kind"] == "InferencePool"]
    assert pool["spec"]["targetPorts"] == [{"number": 9000}]
    assert pool["spec"]["endpointPickerRef"]["name"] == "picker"
    assert kinds_missing(requested, ["InferencePool"]) == []
    assert "needs the kind InferencePool" in kinds_missing(requested, [])[0]
    kinds = [it["kind"] for it in desired_children(requested, ChildOptions(), [])]
    assert "InferencePool" not in kinds
    assert "InferencePool" not in [it["kind"] for it in desired_children(service(), ChildOptions())]


@pytest.mark.parametrize(
    ("addresses", "url"),
    [
        ((), None),
        (("2001:db8::1",), "http://[2001:db8::1]:10002/v1"),
        (("192.0.2.1", "192.0.2.2"), "http://192.0.2.1:10002/v1"),
    ],
)
def test_the_external_url_uses_the_first_load_balancer_address(addresses: tuple[str, ...], url: str | None) -> None:
    assert external_url(service(), addresses) == url
