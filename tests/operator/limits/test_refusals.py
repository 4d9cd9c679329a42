import pytest
from builders import service
from caching import model_cache

from ballast_operator.limits.allowed import AllowLists
from ballast_operator.limits.refusals import why_cache_not_allowed, why_not_allowed


def host_path(path):
    return {"model": {"source": {"hostPath": {"path": path}}}}


def refusal(lists, **spec):
    return why_not_allowed(service(**spec).spec, lists)


def test_without_lists_everything_but_a_host_path_is_allowed():
    scheduling = {"priorityClassName": "system-node-critical", "nodeSelector": {"a": "b"}}
    assert refusal(AllowLists(), image="anywhere.test/x:1", scheduling=scheduling) is None
    message = refusal(AllowLists(), **host_path("/"))
    assert (
        message == "spec.model.source.hostPath.path / is not allowed: --allowed-host-path of the operator allows none"
    )


@pytest.mark.parametrize(
    ("image", "prefix", "allowed"),
    [
        ("r.test/team/runtime:1", "r.test/team/", True),
        ("r.test/team/runtime:1", "r.test/team", True),
        ("r.test/team/runtime:1", "r.test", True),
        ("r.test/team/runtime:1", "r.test/team/runtime", True),
        ("r.test/team/runtime@sha256:0", "r.test/team/runtime", True),
        ("r.test/team/runtime:1", "r.test/team/runtime:1", True),
        ("r.test/team/runtime:10", "r.test/team/runtime:1", False),
        ("r.test/team-b/runtime:1", "r.test/team", False),
        ("r.test.evil.test/x:1", "r.test", False),
        ("r.test:5000/x", "r.test", False),
        ("r.test:5000/x", "r.test:5000", True),
        ("r.test:5000@evil/x", "r.test:5000", False),
        ("evil.test/r.test/team/runtime:1", "r.test/team/", False),
        ("runtime:1", "runtime", True),
        ("runtime:5000/x:1", "runtime", False),
    ],
)
def test_an_image_prefix_matches_whole_path_segments_only(image, prefix, allowed):
    lists = AllowLists(images=("other.test/", prefix))
    assert (refusal(lists, image=image) is None) == allowed
    assert (refusal(lists, model={"source": {"image": {"reference": image}}}) is None) == allowed


STORE = {"bucket": "models", "pvc": {"claimName": "models"}}
ARTIFACT = {"reference": "r.test/team/model:1", "pvc": {"claimName": "models"}}


def test_an_artifact_is_limited_like_an_image():
    lists = AllowLists(images=("r.test/team/",))
    assert refusal(lists, model={"source": {"oci": ARTIFACT}}) is None
    other = {**ARTIFACT, "reference": "r.test/other/model:1"}
    message = refusal(lists, model={"source": {"oci": other}})
    assert "spec.model.source.oci.reference r.test/other/model:1 is not allowed: --allowed-image" in message
    assert refusal(lists, model={"source": {"s3": STORE}}) is None

    def cached(reference):
        source = {"oci": {"reference": reference}}
        cache = model_cache({"name": "tiny", "size": "1Gi", "source": source}, storage={"pvc": {"claimName": "x"}})
        return why_cache_not_allowed(cache.spec, lists)

    assert cached("r.test/team/model:1") is None
    assert "spec.models[tiny].source.oci.reference r.test/other/model:1 is not allowed" in cached(
        "r.test/other/model:1"
    )


@pytest.mark.parametrize(("kind", "source"), [("s3", STORE), ("oci", ARTIFACT)])
def test_the_target_folder_of_a_pull_is_restricted_for_every_source(kind, source):
    folder = {**source, "pvc": None, "hostPath": {"path": "/srv/models"}}
    spec = {
        "model": {"source": {kind: {name: value for name, value in folder.items() if value is not None}}},
        "scheduling": {"nodeSelector": {"kubernetes.io/hostname": "a"}},
    }
    assert refusal(AllowLists(host_paths=("/srv",)), **spec) is None
    assert f"spec.model.source.{kind}.hostPath.path /srv/models is not allowed" in refusal(AllowLists(), **spec)


@pytest.mark.parametrize(
    ("path", "root", "allowed"),
    [
        ("/srv/models", "/srv/models", True),
        ("/srv/models/", "/srv/models", True),
        ("/srv/models/r1", "/srv/models/", True),
        ("//srv//models//r1", "/srv/models", True),
        ("/srv/models-of-others", "/srv/models", False),
        ("/srv", "/srv/models", False),
        ("/", "/srv/models", False),
        ("/srv/models/../../etc", "/srv/models", False),
        ("/etc", "/", True),
    ],
)
def test_a_host_path_is_below_a_directory_only_as_a_path(path, root, allowed):
    assert (refusal(AllowLists(host_paths=("/elsewhere", root)), **host_path(path)) is None) == allowed


SIDECAR = {"name": "log", "cpu": "100m", "memory": "64Mi"}
BESIDE = {
    "sidecars[log].image": lambda value: {"sidecars": [{**SIDECAR, "image": value}]},
    "volumes[agent].hostPath.path": lambda value: {"volumes": [{"name": "agent", "hostPath": {"path": value}}]},
    "kernelCache.hostPath": lambda value: {"kernelCache": {"hostPath": value}},
}


@pytest.mark.parametrize("field", BESIDE)
def test_other_images_and_host_paths_are_checked_against_the_same_lists(field):
    lists = AllowLists(images=("/srv/ok",), host_paths=("/srv/ok",))
    assert refusal(lists, **BESIDE[field]("/srv/ok/x")) is None
    message = refusal(lists, **BESIDE[field]("/srv/other"))
    assert message is not None
    assert message.startswith(f"spec.{field} /srv/other is not allowed: --allowed-")


def test_a_priority_class_must_be_listed():
    lists = AllowLists(priority_classes=("models", "batch"))
    assert refusal(lists) is None
    assert refusal(lists, scheduling={"priorityClassName": "batch"}) is None
    message = refusal(lists, scheduling={"priorityClassName": "system-node-critical"})
    assert message is not None
    assert "system-node-critical is not allowed: --allowed-priority-class of the operator allows only models" in message


def test_a_node_selector_holds_all_labels_of_one_entry():
    lists = AllowLists(node_selectors=({"pool": "models", "zone": "a"}, {"gpu": "h100"}))
    assert refusal(lists, scheduling={"nodeSelector": {"pool": "models", "zone": "a", "disk": "fast"}}) is None
    assert refusal(lists, scheduling={"nodeSelector": {"gpu": "h100"}}) is None
    for requested in ({}, {"pool": "models"}, {"pool": "system", "zone": "a"}):
        message = refusal(lists, scheduling={"nodeSelector": requested})
        assert message is not None
        assert "allows only pool=models,zone=a, gpu=h100" in message


def test_all_forbidden_values_are_reported_together():
    lists = AllowLists(images=("r.test/",), priority_classes=("models",))
    message = refusal(lists, image="x", scheduling={"priorityClassName": "y"}, **host_path("/z"))
    assert message is not None
    assert [sentence.split()[0] for sentence in message.split("; ")] == [
        "spec.image",
        "spec.model.source.hostPath.path",
        "spec.scheduling.priorityClassName",
    ]
