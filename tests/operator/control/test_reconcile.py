"""One pass of the control loop when single API calls fail, or when the cluster has changed between passes."""

import asyncio

import pytest
from fakes import REF, FakeApi, FakeProber, custom_resource, reconciler

from ballast_operator.cluster.api import ApiError, NamespaceEndsError
from ballast_operator.cluster.kinds import INFERENCE_SERVICE, NODE_TOPOLOGY


def run(step):
    return asyncio.run(step.reconcile(REF))


@pytest.mark.parametrize("kind", ["PodMonitor", "Service", "PodDisruptionBudget"])
def test_a_failing_webhook_of_a_child_does_not_block_pods_or_status(kind):
    api = FakeApi(custom_resource(), {("apply", kind): 500})
    with pytest.raises(ApiError, match="HTTP 500"):
        run(reconciler(api))
    assert len(api.written("create", "Pod")) == 1
    assert {"Service", "PodMonitor", "PodDisruptionBudget"} - {kind} <= {name for _, name, _ in api.writes}
    assert api.conditions["Ready"] == ("False", "PodMissing")
    assert api.conditions["Progressing"] == ("False", "Blocked")


def test_a_status_with_conditions_in_another_order_is_not_written_again():
    api = FakeApi(custom_resource())
    api.add_children()
    api.add_pod(ready=True)
    step = reconciler(api)
    run(step)
    api.writes.clear()
    api.objects["InferenceService", "s"]["status"]["conditions"].reverse()
    run(step)
    assert api.writes == []


@pytest.mark.parametrize("verb", ["get", "apply"])
@pytest.mark.parametrize("status", [403, 500])
def test_a_pod_monitor_keeps_no_service_from_being_ready(verb, status):
    api = FakeApi(custom_resource(numa={"enforcement": "Off"}), {(verb, "PodMonitor"): status})
    api.add_children()
    del api.objects["PodMonitor", "s"]
    api.add_pod(ready=True)
    if status == 403:
        assert run(reconciler(api)) == 30
    else:
        with pytest.raises(ApiError):
            run(reconciler(api))
    assert api.conditions["Ready"] == ("True", "Serving")


@pytest.mark.parametrize("kind", ["Service", "PodMonitor", "PodDisruptionBudget"])
@pytest.mark.parametrize("status", [403, 500])
def test_a_crashed_engine_is_reported_although_a_child_cannot_be_read(kind, status):
    api = FakeApi(custom_resource(), {("get", kind): status})
    api.add_children()
    api.add_pod(ready=False)
    stood = [{"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    api.objects["InferenceService", "s"]["status"] = {"conditions": stood}
    if status == 403:
        run(reconciler(api))
    else:
        with pytest.raises(ApiError):
            run(reconciler(api))
    assert api.conditions["Ready"][0] == "False"
    assert (api.conditions["Ready"][1] == "ChildRefused") is (status == 403 and kind != "PodMonitor")


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("NetworkPolicy", {"endpoint": {"networkPolicy": {}}}),
        ("ConfigMap", {"engine": {"placementRules": {"inline": "a: 1"}}}),
    ],
)
@pytest.mark.parametrize("failure", [("get", 403), ("apply", 403), ("get", 500), ("apply", 500)])
def test_no_pod_starts_before_its_rules_and_its_policy(kind, spec, failure):
    verb, status = failure
    api = FakeApi(custom_resource(**spec), {(verb, kind): status})
    if status == 403:
        run(reconciler(api))
        assert api.conditions["Ready"] == ("False", "ChildRefused")
    else:
        with pytest.raises(ApiError):
            run(reconciler(api))
        assert api.conditions["Ready"] == ("False", "PodMissing")
    assert api.written("create", "Pod") == []


@pytest.mark.parametrize("failing", [("list", "Pod"), ("get", "Service"), ("list", "EndpointSlice")])
@pytest.mark.parametrize("status", [0, 429, 500])
def test_a_temporary_error_does_not_change_the_status(failing, status):
    api = FakeApi(custom_resource(numa={"enforcement": "Off"}), {failing: status})
    api.add_children()
    api.add_pod(ready=True)
    with pytest.raises(ApiError):
        run(reconciler(api))
    assert api.conditions == {}


def test_a_pod_without_a_node_reports_whether_it_would_fit_an_empty_one():
    api = FakeApi(custom_resource(resources={"cpus": 2, "memory": "1Gi", "gpus": 2}))
    api.add_children()
    body = api.add_pod(ready=False)
    del body["spec"]["nodeName"]
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    body["status"] = {"phase": "Pending", "conditions": [why]}
    allocatable = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "1"}
    for name in ("n1", "n2"):
        api.put({"kind": "Node", "metadata": {"name": name, "uid": name}, "status": {"allocatable": allocatable}})
    step = reconciler(api)
    run(step)
    assert api.conditions["Scheduled"] == ("False", "Unschedulable")
    message = next(c["message"] for c in api.status["conditions"] if c["type"] == "Scheduled")
    assert "0/2 nodes are available; even without other pods, none of 2 nodes could run the pod" in message
    assert "2 with less nvidia.com/gpu than the pod requests, 1 of 2" in message
    larger = {**api.objects["Node", "n1"], "status": {"allocatable": {**allocatable, "nvidia.com/gpu": "2"}}}
    api.put(larger)
    step.state.nodes_changed = 1.0
    run(step)
    message = next(c["message"] for c in api.status["conditions"] if c["type"] == "Scheduled")
    assert message.endswith("0/2 nodes are available")


def test_a_pod_that_cannot_be_created_is_reported_and_retried():
    api = FakeApi(custom_resource(), {("create", "Pod"): 500})
    with pytest.raises(ApiError, match="create pods"):
        run(reconciler(api))
    assert api.conditions["Ready"] == ("False", "PodMissing")


def test_a_pod_whose_image_a_webhook_rewrote_is_not_changed():
    api = FakeApi(custom_resource(numa={"enforcement": "Off"}))
    api.add_children()
    api.add_pod(ready=True)["spec"]["containers"][0]["image"] = "mirror.example/runtime@sha256:abc"
    run(reconciler(api))
    assert {name for _, name, _ in api.writes} == {"InferenceService", "Event"}
    assert api.conditions["Ready"] == ("True", "Serving")


def test_an_unreadable_service_is_not_ready():
    api = FakeApi(custom_resource(numa={"enforcement": "Off"}), {("get", "Service"): 403})
    api.add_pod(ready=True)
    run(reconciler(api))
    assert api.conditions["Ready"] == ("False", "ChildRefused")
    assert api.conditions["EndpointReady"] == ("False", "ServiceUnreachable")


@pytest.fixture
def serving():
    api, prober = FakeApi(custom_resource(numa={"enforcement": "Off"})), FakeProber()
    api.add_children()
    api.add_pod(ready=True)
    step = reconciler(api, prober)
    for _ in range(2):
        run(step)
    assert prober.through_service == ["10.96.0.1"], "probed once while nothing changes"
    assert api.conditions["EndpointReady"] == ("True", "Reachable")
    return api, prober, step


def test_a_deleted_service_is_not_reachable_and_the_next_one_is_checked(serving):
    api, prober, step = serving
    service = api.objects.pop(("Service", "s"))
    run(step)
    assert api.conditions["EndpointReady"] == ("False", "ServiceUnreachable")
    service["metadata"]["uid"] = "another"
    service["spec"]["clusterIP"] = "10.96.0.2"
    api.put(service)
    run(step)
    assert prober.through_service == ["10.96.0.1", "10.96.0.2"]
    assert api.conditions["EndpointReady"] == ("True", "Reachable")


def test_a_service_that_loses_its_endpoints_is_not_ready_and_is_checked_again_later(serving):
    api, prober, step = serving
    (endpoint,) = api.objects["EndpointSlice", "s-1"]["endpoints"]
    endpoint["conditions"]["ready"] = False
    run(step)
    assert api.conditions["Ready"] == ("False", "EndpointsMissing")
    endpoint["conditions"] = {}
    run(step)
    assert api.conditions["Ready"] == ("True", "Serving")
    assert prober.through_service == ["10.96.0.1", "10.96.0.1"]


def test_unreadable_endpoints_make_a_service_not_ready(serving):
    api, _, step = serving
    api.failures = {("list", "EndpointSlice"): 403}
    run(step)
    assert api.conditions["EndpointReady"] == ("False", "ServiceUnreachable")


def test_a_service_that_was_replaced_unnoticed_is_checked_again(serving):
    api, prober, step = serving
    api.objects["Service", "s"]["metadata"]["uid"] = "another"
    run(step)
    assert prober.through_service == ["10.96.0.1", "10.96.0.1"]


def test_a_pod_that_was_not_ready_is_reached_again(serving):
    api, prober, step = serving
    (condition,) = api.objects["Pod", "s-0"]["status"]["conditions"]
    for status in ("False", "True"):
        condition["status"] = status
        run(step)
    assert prober.through_service == ["10.96.0.1", "10.96.0.1"]
    assert api.conditions["EndpointReady"] == ("True", "Reachable")


@pytest.fixture
def reported():
    """One node that reports too little free memory on its NUMA node."""
    api = FakeApi(custom_resource(numa={"enforcement": "Require"}))
    api.put({"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}})
    free = [{"name": "cpu", "available": "1"}, {"name": "memory", "available": "4Gi"}]
    zones = [{"name": "node-0", "type": "Node", "resources": free}]
    api.put({"kind": "NodeResourceTopology", "metadata": {"name": "a"}, "zones": zones})
    step = reconciler(api)
    step.state.known |= {NODE_TOPOLOGY}
    return api, step


def test_a_pod_to_be_pinned_waits_only_if_every_node_reports_no_capacity(reported):
    api, step = reported
    run(step)
    assert api.conditions["Ready"] == ("False", "NoNUMANodeFits")
    assert api.written("create", "Pod") == []
    api.put({"kind": "Node", "metadata": {"name": "b"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}})
    run(step)
    assert len(api.written("create", "Pod")) == 1


@pytest.mark.parametrize("kind", ["Node", "NodeResourceTopology"])
def test_unreadable_capacity_blocks_no_pod(reported, kind):
    api, step = reported
    api.failures = {("list", kind): 403}
    run(step)
    assert len(api.written("create", "Pod")) == 1


def test_a_service_that_is_being_deleted_is_not_written():
    """During foreground deletion the service still exists while its children go: a new pod would be useless."""
    api = FakeApi(custom_resource())
    step = reconciler(api)
    run(step)
    assert api.written("create", "Pod")
    api.writes.clear()
    api.objects["InferenceService", "s"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert run(step) is None
    assert api.writes == []


@pytest.mark.parametrize("refused", [("apply", "Service"), ("create", "Pod")])
def test_once_the_namespace_is_being_deleted_nothing_is_written_again(refused):
    api = FakeApi(custom_resource(), {refused: NamespaceEndsError("create", 403, "because it is being terminated")})
    step = reconciler(api)
    assert run(step) is None
    api.writes.clear()
    assert run(step) is None
    assert api.writes == []
    api.failures.clear()
    api.objects["InferenceService", "s"]["metadata"]["uid"] = "of the namespace that took the name"
    run(step)
    assert api.written("create", "Pod")


@pytest.mark.parametrize(
    ("refusal", "stays"),
    [
        (ApiError("try", 403, "no PriorityClass with name nope was found"), True),
        (ApiError("try", 422, "metadata.labels: Invalid value"), True),
        (ApiError("try", 500, "failed calling webhook"), True),
        (ApiError("try", 403, "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"), False),
        (ApiError("try", 400, 'admission webhook "w" does not support dry run'), False),
        (None, False),
    ],
)
def test_a_pod_is_replaced_only_if_its_successor_is_acceptable(refusal, stays):
    api = FakeApi(custom_resource(numa={"enforcement": "Off"}))
    api.add_children()
    api.add_pod(ready=True)
    api.objects["InferenceService", "s"]["spec"]["engine"] = {"cacheLens": 5000}
    api.failures = {} if refusal is None else {("try", "Pod"): refusal}
    try:
        run(reconciler(api))
    except ApiError:
        assert refusal.status == 500
    assert bool(api.written("delete", "Pod")) is not stays
    assert api.conditions["Ready"][0] == "False"


@pytest.mark.parametrize("second_look", ["deleting", "gone", "another", "same"])
def test_an_owner_is_restored_only_if_the_service_still_exists(second_look):
    class DeletedMeanwhile(FakeApi):
        looks = 0

        async def get(self, kind, namespace, name):
            body = await super().get(kind, namespace, name)
            if kind is INFERENCE_SERVICE:
                self.looks += 1
                if self.looks == 2 and second_look == "gone":
                    return None
                if self.looks == 2 and second_look == "deleting":
                    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                if self.looks == 2 and second_look == "another":
                    body["metadata"]["uid"] = "another"
            return body

    api = DeletedMeanwhile(custom_resource())
    api.add_children()
    del api.add_pod(ready=True)["metadata"]["ownerReferences"]
    del api.objects["Service", "s"]["metadata"]["ownerReferences"]
    run(reconciler(api))
    if second_look == "same":
        assert {"Pod", "Service"} <= {name for _, name, _ in api.writes}
    else:
        assert api.writes == []
