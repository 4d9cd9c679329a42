"""ModelCaches for tests, and their Jobs; the test acts as kubelet for the Jobs' pods."""

from __future__ import annotations

from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.pulling import set_status, terminated
from devkit.cluster.waiting import wait_for

OF_CACHE = "serving.ballast.dev/model-cache"
PULL = "serving.ballast.dev/pull"
ANNOTATION = "serving.ballast.dev/"


def model(name: str, size: str = "60Gi", **source: object) -> Object:
    hub = {"repo": f"org/{name}", "quant": "Q8_0", **source}
    return {"name": name, "size": size, "source": {"huggingFace": hub}}


def model_cache(name: str, *models: Object, nodes: dict[str, str] | None = None, **spec: object) -> Object:
    """A cache on nodes with these labels, with room for one model of the usual size."""
    return {
        "apiVersion": "serving.ballast.dev/v1beta1",
        "kind": "ModelCache",
        "metadata": {"name": name},
        "spec": {
            "storage": {"hostPath": {"path": "/srv/models"}},
            "capacity": "100Gi",
            "nodeSelector": nodes or {},
            "models": list(models),
            **spec,
        },
    }


def cached_source(cache: str, name: str) -> Object:
    """The `model` of a service that uses the cache."""
    return {"source": {"cache": {"name": cache, "model": name}}}


def cache_jobs(kube: Kube, namespace: str, model_name: str, place: str, *, removes: bool = False) -> list[Object]:
    """The Jobs that pull a model to a place, or remove it from there."""
    found = []
    for job in kube.list("jobs", namespace):
        noted = job["metadata"]["annotations"]
        here = (noted.get(f"{ANNOTATION}model"), noted.get(f"{ANNOTATION}place")) == (model_name, place)
        if here and job["metadata"]["name"].endswith("-remove") == removes:
            found.append(job)
    return found


def finish(kube: Kube, namespace: str, model_name: str, place: str, *, removes: bool = False) -> Object:
    """Let the Job's pod succeed once it runs; return the pod before that."""
    pod = running_pod(kube, namespace, model_name, place, removes=removes)
    set_status(kube, pod, phase="Succeeded", state=terminated(0, "Pulled", "done"))
    return pod


def running_pod(kube: Kube, namespace: str, model_name: str, place: str, *, removes: bool = False) -> Object:
    def there() -> Object:
        jobs = cache_jobs(kube, namespace, model_name, place, removes=removes)
        assert len(jobs) == 1
        pods = kube.list("pods", namespace, {PULL: jobs[0]["metadata"]["name"]})
        assert len(pods) == 1
        [pod] = pods
        assert pod["status"]["phase"] == "Running", pod["status"]
        return pod

    return wait_for(f"the pod for {model_name} on {place}", there)


def states(kube: Kube, namespace: str, name: str) -> dict[tuple[str, str], str]:
    """The state of each model in each place."""
    status = kube.get("modelcaches", name, namespace).get("status") or {}
    return {
        (place["name"], entry["name"]): entry["state"]
        for place in status.get("places", [])
        for entry in place.get("models", [])
    }


def wait_cache(kube: Kube, namespace: str, name: str, status: str, reason: str) -> Object:
    """The condition Ready, once it has this status and reason for the newest spec."""

    def there() -> Object:
        body = kube.get("modelcaches", name, namespace)
        found: Object = next(iter((body.get("status") or {}).get("conditions", [])), {})
        assert (found.get("status"), found.get("reason")) == (status, reason), found
        assert found["observedGeneration"] == body["metadata"]["generation"], "the condition is for an older spec"
        return found

    return wait_for(f"Ready={status} {reason} of ModelCache {name}", there)
