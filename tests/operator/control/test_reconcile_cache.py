"""Passes over a ModelCache."""

import asyncio

import pytest
from builders import NOW
from caching import cache_body, cached, model_cache
from fakes import FakeApi, FakeProber, custom_resource, live, writer

from ballast_operator.child_options import ChildOptions
from ballast_operator.control.observing.installs import Installs
from ballast_operator.control.reconcile_cache import WAITS_S, CacheReconciler
from ballast_operator.limits.allowed import AllowLists
from ballast_operator.names import FINALIZER_CACHE, Ref
from ballast_operator.resources.pulling.cache_job import build_cache_pull, folder_of

OPTIONS = ChildOptions(allowed=AllowLists(host_paths=("/srv",)))
CACHE = Ref("ns", "models")
NODE = {"kind": "Node", "metadata": {"name": "n1", "labels": {}}}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}


def api_with(*models, finalizers=(FINALIZER_CACHE,), nodes=(NODE,), failures=None, **spec):
    body = cache_body(*models, **spec)
    body["metadata"] |= {"resourceVersion": "1", "finalizers": list(finalizers)}
    api = FakeApi(custom_resource(), failures)
    for one in (body, *nodes):
        api.put(one)
    return api


def with_model(api, name, place="n1", **status):
    """Add the Job that pulled the model."""
    cache = model_cache(*api.objects["ModelCache", "models"]["spec"]["models"])
    job = live(build_cache_pull(cache, cache.model(name), place, OPTIONS), status=status or COMPLETE)
    api.put(job)
    return folder_of(cache, cache.model(name))


def run(api, options=OPTIONS):
    installs = Installs(api, Ref("system", "operator"), lambda: 0.0)
    reconciler = CacheReconciler(api, FakeProber(), options, installs, writer(api), lambda: NOW, lambda: 0.0)
    return asyncio.run(reconciler.reconcile(CACHE))


def status_of(api):
    return api.objects["ModelCache", "models"]["status"]


def states(api):
    [place] = status_of(api)["places"]
    return {entry["name"]: entry["state"] for entry in place["models"]}


def jobs_created(api):
    return [job["metadata"]["name"] for job in api.written("create", "Job")]


def name_it(api, model, **metadata):
    body = custom_resource(model={"source": {"cache": {"name": "models", "model": model}}})
    body["metadata"] |= metadata
    api.put(body)


def test_the_finalizer_comes_before_any_job():
    api = api_with(cached(), finalizers=["other"])
    assert run(api) == 0.0
    assert [body["metadata"]["finalizers"] for body in api.written("merge", "ModelCache")] == [
        ["other", FINALIZER_CACHE]
    ]
    assert jobs_created(api) == []


def test_a_model_is_pulled_and_its_job_is_checked_again_soon():
    api = api_with(cached())
    assert run(api) == 1
    assert len(jobs_created(api)) == 1
    assert states(api) == {"tiny": "Waiting"}
    with_model(api, "tiny", conditions=[])
    api.writes.clear()
    run(api)
    assert jobs_created(api) == []


def test_a_cache_that_is_full_waits_for_the_resync():
    api = api_with(cached())
    with_model(api, "tiny")
    assert run(api) is None
    assert states(api) == {"tiny": "Present"}
    assert status_of(api)["places"][0]["used"] == "60Gi"


def test_an_eviction_is_announced_before_it_starts():
    api = api_with(cached("old"), cached("new"))
    with_model(api, "old")
    name_it(api, "new")
    assert run(api) == 1
    assert states(api) == {"old": "Removing", "new": "Waiting"}
    assert jobs_created(api) == []
    run(api)
    [job] = api.written("create", "Job")
    assert job["metadata"]["name"].endswith("-remove")


FAILED = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]


def test_a_failing_pull_yields_to_a_model_that_a_service_uses():
    api = api_with(cached("old"), cached("new"))
    with_model(api, "old", conditions=FAILED)
    name_it(api, "new")
    run(api)
    run(api)
    assert states(api) == {"old": "Removing", "new": "Waiting"}
    assert [name.endswith("-remove") for name in jobs_created(api)] == [True]


def test_a_deleted_cache_removes_the_files_of_a_pull_that_fails():
    api = api_with(cached(), deleting=True)
    with_model(api, "tiny", conditions=FAILED)
    run(api)
    run(api)
    assert [name.endswith("-remove") for name in jobs_created(api)] == [True]


def test_a_service_that_found_the_model_before_the_announcement_keeps_it():
    api = api_with(cached("old"), cached("new"))
    with_model(api, "old")
    name_it(api, "new")
    run(api)
    name_it(api, "old", name="late")
    run(api)
    assert states(api) == {"old": "Present", "new": "NoRoom"}
    assert jobs_created(api) == []
    assert status_of(api)["conditions"][0]["reason"] == "NoRoom"


def test_a_pod_keeps_the_model_that_its_service_no_longer_uses():
    api = api_with(cached("old"), cached("new"))
    folder = with_model(api, "old")
    name_it(api, "new")
    mount = {"name": "model", "subPath": folder}
    spec = {"nodeName": "n1", "containers": [{"name": "engine", "volumeMounts": [mount]}]}
    labels = {"app.kubernetes.io/managed-by": "ballast-operator"}
    api.put(live({"kind": "Pod", "metadata": {"name": "s-0", "labels": labels}, "spec": spec}))
    assert run(api) == WAITS_S
    assert states(api) == {"old": "Present", "new": "NoRoom"}


def test_the_time_of_last_use_stays_while_a_model_is_unused():
    api = api_with(cached())
    with_model(api, "tiny")
    name_it(api, "tiny")
    run(api)
    [entry] = status_of(api)["places"][0]["models"]
    assert entry["inUse"]
    assert "lastUsed" not in entry
    name_it(api, "other")
    run(api)
    [entry] = status_of(api)["places"][0]["models"]
    assert entry["lastUsed"] == "2026-01-01T12:00:00Z"
    entry["lastUsed"] = "2025-01-01T00:00:00Z"
    run(api)
    assert status_of(api)["places"][0]["models"][0]["lastUsed"] == "2025-01-01T00:00:00Z"


def test_a_deleted_node_is_forgotten():
    api = api_with(cached(), nodes=())
    with_model(api, "tiny")
    run(api)
    assert len(api.written("delete", "Job")) == 1
    assert status_of(api)["conditions"][0]["reason"] == "NoNodes"


def test_a_rejected_directory_is_not_changed():
    api = api_with(cached())
    assert run(api, ChildOptions()) is None
    assert status_of(api)["conditions"][0]["reason"] == "NotAllowed"
    assert jobs_created(api) == []


def test_a_directory_is_cleaned_even_if_it_is_no_longer_allowed():
    api = api_with(cached(), deleting=True)
    with_model(api, "tiny")
    run(api, ChildOptions())
    run(api, ChildOptions())
    assert [name.endswith("-remove") for name in jobs_created(api)] == [True]


@pytest.mark.parametrize("finalizers", [[FINALIZER_CACHE], [FINALIZER_CACHE, "other"]])
def test_a_deleted_cache_without_files_is_released(finalizers):
    api = api_with(cached(), deleting=True, finalizers=finalizers)
    assert run(api) is None
    [patch] = api.written("merge", "ModelCache")
    assert patch["metadata"]["finalizers"] == finalizers[1:]


def test_no_job_is_created_if_the_api_server_rejects_its_pod():
    api = api_with(cached(), failures={("try", "Pod"): 403})
    assert run(api) == WAITS_S
    assert states(api) == {"tiny": "Failed"}
    assert status_of(api)["conditions"][0]["reason"] == "PullRefused"
    assert jobs_created(api) == []
