"""Locations of models, from the Jobs of a ModelCache, and which models are in use."""

import pytest
from caching import cached, model_cache

from ballast_operator.child_options import ChildOptions
from ballast_operator.control.deciding.cache_copies import copies_of, mounted_folders, named_folders
from ballast_operator.control.deciding.cache_places import places_of
from ballast_operator.resources.pulling.cache_job import build_cache_pull, build_removal, folder_of

CACHE = model_cache(cached())
[TINY] = CACHE.spec.models
FOLDER = folder_of(CACHE, TINY)
OPTIONS = ChildOptions()


def pull_job(**changed):
    job = build_cache_pull(CACHE, TINY, "n1", OPTIONS)
    return {**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}, **changed}


def removal_job():
    return build_removal(CACHE, "n1", FOLDER, "tiny", "60Gi", OPTIONS)


def test_a_completed_pull_records_a_copy():
    [(key, copy)] = copies_of(CACHE, [pull_job()], []).items()
    assert key == ("n1", FOLDER)
    assert copy.present
    assert (copy.model, copy.size) == ("tiny", "60Gi")


@pytest.mark.parametrize(
    "jobs",
    [
        [pull_job(), removal_job()],
        [removal_job()],
        [pull_job(spec={"suspend": True})],
        [pull_job(metadata={**pull_job()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"})],
    ],
    ids=["removal begun", "pull forgotten", "pull stopped", "pull being deleted"],
)
def test_a_copy_that_is_being_removed_is_not_used(jobs):
    [copy] = copies_of(CACHE, jobs, []).values()
    assert copy.leaving
    assert not copy.present


@pytest.mark.parametrize("folder", ["../x", "other.models.tiny-01234567", f"{FOLDER}/..", ""])
def test_a_job_with_a_foreign_folder_is_not_changed(folder):
    job = pull_job()
    job["metadata"]["annotations"]["serving.ballast.dev/folder"] = folder
    assert copies_of(CACHE, [job], []) == {}


def test_a_job_with_another_name_is_not_changed():
    job = pull_job()
    job["metadata"]["name"] = "mine"
    assert copies_of(CACHE, [job], []) == {}


def test_folders_are_derived_from_services():
    def service(name, cache, model, **metadata):
        return {
            "metadata": {"name": name, **metadata},
            "spec": {"model": {"source": {"cache": {"name": cache, "model": model}}}},
        }

    services = [
        service("one", "models", "tiny"),
        service("gone", "models", "tiny", deletionTimestamp="2026-01-01T00:00:00Z"),
        service("unknown", "models", "huge"),
        service("elsewhere", "others", "tiny"),
        {"metadata": {"name": "pvc"}, "spec": {"model": {"source": {"pvc": {"claimName": "c"}}}}},
    ]
    assert named_folders(CACHE, services) == {FOLDER: ["one"]}


def test_pods_mount_folders():
    def pod(folder, phase="Running", node="n1", container="engine"):
        mount = {"name": "model", "subPath": folder}
        return {
            "spec": {"nodeName": node, "containers": [{"name": container, "volumeMounts": [mount]}]},
            "status": {"phase": phase},
        }

    assert mounted_folders(CACHE, [pod(FOLDER), pod(FOLDER, node="n2")]) == {FOLDER: {"n1", "n2"}}
    assert mounted_folders(CACHE, [pod(FOLDER, "Failed"), pod(FOLDER, node=""), pod("ns.others.x-01234567")]) == {}
    assert mounted_folders(CACHE, [pod(FOLDER, container="sidecar")]) == {}


def test_nodes_are_chosen_by_labels_and_taints():
    def node(name, taints=(), **labels):
        return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}}

    gpu = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    soft = {"key": "gpu", "effect": "PreferNoSchedule"}
    nodes = [
        node("b", pool="m"),
        node("a", [cordoned], pool="m"),
        node("c", [gpu], pool="m"),
        node("d", [soft], pool="m"),
        node("e"),
    ]

    def chosen(**spec):
        return places_of(model_cache(**spec).spec, nodes)

    assert chosen(nodeSelector={"pool": "m"}) == ["a", "b", "d"], "a cordoned node keeps its models"
    for toleration in ({"operator": "Exists"}, {"key": "gpu", "value": "yes"}, {"key": "gpu", "operator": "Exists"}):
        assert "c" in chosen(tolerations=[toleration])
    for toleration in ({"key": "gpu"}, {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}):
        assert "c" not in chosen(tolerations=[toleration])
