"""The custom resource definitions of this release, an earlier one and a later one."""

from __future__ import annotations

from collections.abc import Sequence

from devkit.cluster.kube import Kube, Object, documents, path_of
from devkit.cluster.service.operator import CRD, CRDS, ROOT
from devkit.cluster.waiting import wait_for

OLD, NEW = ".v1alpha1", ""
"""Suffixes of the resource names in `Kube`."""
RELEASE_0_1 = ROOT / "tests/cluster/release-0.1" / CRD.name
KINDS = ("inferenceservices", "modelcaches")


def of_this_release() -> list[Object]:
    return [document for path in CRDS for document in documents(path)]


def of_release_0_1() -> list[Object]:
    """Definitions without ModelCache and without many fields of specs and statuses."""
    return list(documents(RELEASE_0_1))


def of_the_release_before() -> list[Object]:
    """Definitions with only v1alpha1."""
    found = of_this_release()
    for definition in found:
        spec = definition["spec"]
        spec["versions"] = [version for version in spec["versions"] if version["name"] == "v1alpha1"]
    return found


def of_the_release_after() -> list[Object]:
    """Definitions that store v1beta1 and warn about v1alpha1."""
    found = of_this_release()
    for version in (version for definition in found for version in definition["spec"]["versions"]):
        version["storage"] = version["name"] == "v1beta1"
        if version["name"] == "v1alpha1":
            version |= {"deprecated": True, "deprecationWarning": "v1alpha1 is deprecated; use v1beta1"}
    return found


def define(kube: Kube, definitions: Sequence[Object]) -> None:
    """Apply the definitions; return when the API server serves them."""
    for definition in definitions:
        kube.apply("customresourcedefinitions", definition)
    wait_for("the versions to be served", lambda: all(_is_in_force(kube, definition) for definition in definitions))


def stored_versions(kube: Kube) -> list[list[str]]:
    """For each kind: the versions in which objects may be stored."""
    names = [definition["metadata"]["name"] for definition in of_this_release()]
    return [kube.get("customresourcedefinitions", name)["status"]["storedVersions"] for name in names]


def serves(kube: Kube, resource: str) -> bool:
    """Whether the API server serves the resource; it may still be preparing its storage."""
    return kube.code_of(path_of(resource)) != 404


def _is_in_force(kube: Kube, definition: Object) -> bool:
    spec = definition["spec"]
    ends = {"v1alpha1": OLD, "v1beta1": NEW}
    codes = {name: kube.code_of(path_of(spec["names"]["plural"] + end)) for name, end in ends.items()}
    wanted = {version["name"] for version in spec["versions"]}
    return codes == {name: 200 if name in wanted else 404 for name in ends}
