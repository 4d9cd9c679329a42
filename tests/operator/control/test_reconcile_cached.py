"""Passes over a service whose model is in a ModelCache."""

import asyncio
from dataclasses import replace

from builders import pod, service
from caching import cache_body, cached
from fakes import OPTIONS, REF, FakeApi, custom_resource, reconciler

from ballast_operator.api.sources.cached_source import FoundModel
from ballast_operator.control.applying.cached_pods import replace_waiting
from ballast_operator.control.applying.outcome import Outcome
from ballast_operator.limits.allowed import AllowLists
from ballast_operator.resources.node_affinity import on_nodes

SOURCE = {"source": {"cache": {"name": "models", "model": "tiny"}}}


def test_a_service_without_its_cache_is_still_scaled_down():
    api = FakeApi(custom_resource())
    api.add_children()
    api.add_pod(ready=True)
    api.objects["InferenceService", "s"]["spec"] |= {"model": SOURCE, "replicas": 0}
    asyncio.run(reconciler(api).reconcile(REF))
    assert [body["metadata"]["name"] for body in api.written("delete", "Pod")] == ["s-0"]


def test_a_folder_that_is_no_longer_allowed_is_not_mounted():
    api = FakeApi(custom_resource(model=SOURCE))
    present = [{"name": "n1", "models": [{"name": "tiny", "state": "Present"}]}]
    api.put({**cache_body(cached()), "status": {"places": present}})
    step = reconciler(api)
    asyncio.run(step.reconcile(REF))
    assert api.conditions["ModelPulled"] == ("False", "CacheMissing")
    assert api.written("create", "Pod") == []
    object.__setattr__(step, "options", replace(OPTIONS, allowed=AllowLists(host_paths=("/srv",))))
    asyncio.run(step.reconcile(REF))
    [body] = api.written("create", "Pod")
    assert {"path": "/srv/models", "type": "Directory"} in [each.get("hostPath") for each in body["spec"]["volumes"]]


def test_a_cache_without_a_place_is_named_with_its_reason():
    api = FakeApi(custom_resource(model=SOURCE))
    ready = {"type": "Ready", "status": "False", "reason": "ClaimMissing", "message": "claim c does not exist"}
    cache = cache_body(cached(), storage={"pvc": {"claimName": "c"}})
    api.put({**cache, "status": {"conditions": [ready]}})
    asyncio.run(reconciler(api).reconcile(REF))
    conditions = api.objects["InferenceService", "s"]["status"]["conditions"]
    [found] = [condition for condition in conditions if condition["type"] == "ModelPulled"]
    assert (found["status"], found["reason"]) == ("False", "CacheFailed")
    assert found["message"] == "ModelCache models: ClaimMissing: claim c does not exist"


def test_a_waiting_pod_is_replaced_only_if_other_nodes_have_the_model():
    own = {"key": "metadata.name", "operator": "In", "values": ["n9"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [own]}]}
        }
    }
    cached_service = service(scheduling={"affinity": affinity})
    deleted = []

    class Deleting:
        async def delete(self, kind, body):
            deleted.append(body["metadata"]["name"])

    def waiting(nodes):
        body = {"metadata": {"name": "s-0"}, "spec": {"affinity": on_nodes(affinity, nodes)}}
        return pod(0, node=None, ready=False, running=False, body=body)

    found = FoundModel("org/tiny:Q8_0", "tiny", "folder", {"hostPath": {"path": "/srv"}}, ("n1", "n2"))
    for nodes in (["n1", "n2"], ["n3"]):
        asyncio.run(replace_waiting(Deleting(), replace(cached_service, cached=found), [waiting(nodes)], Outcome()))
    assert deleted == ["s-0"]
