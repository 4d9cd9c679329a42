"""Names, images and folders of pods; tests/operator/golden contains complete pods."""

import pytest
from builders import service

from ballast_operator.api.inference_service import SpecError
from ballast_operator.child_options import ChildOptions
from ballast_operator.resources.pod import Attempt, build_pod, parse_pod_name, pod_name, runtime_image

FROM_THE_OPERATOR = ChildOptions(runtime_image="runtime:1", cpu_runtime_image="runtime:1-cpu")
KERNEL_FOLDERS = {"TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"}


@pytest.mark.parametrize("attempt", [Attempt(0), Attempt(12), Attempt(0, 1), Attempt(3, 20)])
@pytest.mark.parametrize("name", ["s", "s-1", "s-0-r1"])
def test_the_name_of_a_pod_contains_its_replica_and_attempt(name, attempt):
    assert parse_pod_name(pod_name(name, attempt)) == (name, attempt)


@pytest.mark.parametrize("name", ["s", "s-x", "s-01", "s-0-r0", "s-0-r1-x", "-0"])
def test_other_names_are_not_names_of_a_pod(name):
    assert parse_pod_name(name) is None


@pytest.mark.parametrize(
    ("gpus", "own", "options", "image"),
    [
        (1, None, FROM_THE_OPERATOR, "runtime:1"),
        (0, None, FROM_THE_OPERATOR, "runtime:1-cpu"),
        (0, "mine:2", FROM_THE_OPERATOR, "mine:2"),
        (0, None, ChildOptions(runtime_image="runtime:1"), "runtime:1"),
    ],
)
def test_a_pod_without_gpus_uses_the_image_without_cuda(gpus, own, options, image):
    spec = service(resources={"cpus": 1, "memory": "1Gi", "gpus": gpus}, image=own).spec
    assert runtime_image(spec, options) == image


def test_kernels_are_kept_on_the_claimed_volume():
    pod = build_pod(service(kernelCache={"claimName": "kernels"}), ChildOptions(), Attempt(0))["spec"]
    (engine,) = pod["containers"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "kernels"]
    (mount,) = [mount for mount in engine["volumeMounts"] if mount["name"] == "kernels"]
    assert volume["persistentVolumeClaim"] == {"claimName": "kernels"}
    assert not mount.get("readOnly")
    kept = {entry["name"]: entry["value"] for entry in engine["env"] if entry["name"] in KERNEL_FOLDERS}
    assert kept.keys() == KERNEL_FOLDERS
    assert all(folder.startswith(mount["mountPath"]) for folder in kept.values())
    (without,) = build_pod(service(), ChildOptions(), Attempt(0))["spec"]["containers"]
    assert not KERNEL_FOLDERS & {entry["name"] for entry in without["env"]}


@pytest.mark.parametrize(
    ("requested", "source"),
    [
        ({"pvc": {"claimName": "packed"}}, {"persistentVolumeClaim": {"claimName": "packed"}}),
        ({"memory": {}}, {"emptyDir": {"medium": "Memory", "sizeLimit": "24Gi"}}),
    ],
)
def test_packed_weights_are_stored_on_the_volume_of_the_spec(requested, source):
    resources = {"cpus": 2, "memory": "24Gi"}
    pod = build_pod(service(packedWeights=requested, resources=resources), ChildOptions(), Attempt(0))["spec"]
    (engine,) = pod["containers"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "packed"]
    (mount,) = [mount for mount in engine["volumeMounts"] if mount["name"] == "packed"]
    assert volume == {"name": "packed", **source}
    assert not mount.get("readOnly")
    assert engine["args"][engine["args"].index("--packed_dir") + 1] == mount["mountPath"]
    assert engine["resources"]["limits"]["memory"] == engine["resources"]["requests"]["memory"] == "24Gi"


def test_packed_weights_are_not_stored_by_default():
    (engine,) = build_pod(service(), ChildOptions(), Attempt(0))["spec"]["containers"]
    assert "--packed_dir" not in engine["args"]


def test_kv_blocks_are_stored_on_the_claim_of_the_spec():
    pod = build_pod(service(kvDisk={"claimName": "conversations"}), ChildOptions(), Attempt(0))["spec"]
    (engine,) = pod["containers"]
    (mount,) = [mount for mount in engine["volumeMounts"] if mount["name"] == "kv"]
    assert {"name": "kv", "persistentVolumeClaim": {"claimName": "conversations"}} in pod["volumes"]
    assert not mount.get("readOnly")
    assert engine["args"][engine["args"].index("--kv_disk_dir") + 1] == mount["mountPath"]
    (unasked,) = build_pod(service(), ChildOptions(), Attempt(0))["spec"]["containers"]
    assert "--kv_disk_dir" not in unasked["args"]


@pytest.mark.parametrize("requested", [{}, {"memory": {}, "pvc": {"claimName": "packed"}}])
def test_packed_weights_need_exactly_one_volume(requested):
    with pytest.raises(SpecError, match="exactly one of memory and pvc"):
        service(packedWeights=requested)
