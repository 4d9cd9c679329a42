"""One control plane with kwok, shared by tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from devkit.cluster.audit import AuditLog
from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.faults.proxy import FaultProxy
from devkit.cluster.kube import RESOURCES, ApiError, Kube, Object, documents
from devkit.cluster.nodes.made_up import add_node, kwok, made_up_node
from devkit.cluster.pki import kubeconfig
from devkit.cluster.waiting import wait_for

END_TIMEOUT_S = 60


class Cluster:
    """Starts with one simulated node for each pod behaviour (kwok_stages.yaml)."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.control_plane = ControlPlane(folder, address)
        self.kwok = kwok(self.control_plane)
        self._installed: dict[str, tuple[str, Object]] = {}
        """By definition: its resource version and manifest at the last installation."""

    @property
    def kube(self) -> Kube:
        """A client with administrator rights."""
        return self.control_plane.kube

    def start(self) -> None:
        try:
            self.control_plane.start()
            self.kwok.start()
            add_node(self.control_plane, made_up_node("gpu-0", cpus=4096, memory="64Ti", gpus=256))
            for behaviour in ("loading", "rejected", "oom", "unpullable", "slow"):
                add_node(self.control_plane, made_up_node(behaviour, behaviour=behaviour))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.kwok.stop()
        self.control_plane.stop()

    def install(self, *manifests: Path) -> None:
        """Apply all objects in these files; return when custom resources can be used."""
        for manifest in manifests:
            for document in documents(manifest):
                if document["kind"] == "CustomResourceDefinition":
                    self._install_definition(document)
                else:
                    self.kube.apply(self.resource_of(document), document)

    def _install_definition(self, definition: Object) -> None:
        """Apply it unless it is unchanged since its last installation: our definitions are long, and the API server
        needs 0.3 s of CPU time to apply them."""
        name = definition["metadata"]["name"]
        found = self.kube.find("customresourcedefinitions", name)
        if found is not None and self._installed.get(name) == (found["metadata"]["resourceVersion"], definition):
            return
        self.kube.apply("customresourcedefinitions", definition)
        self._wait_established(name)
        version = self.kube.get("customresourcedefinitions", name)["metadata"]["resourceVersion"]
        self._installed[name] = (version, definition)

    @contextmanager
    def kinds(self, *definitions: Object) -> Iterator[None]:
        """Install other projects' definitions for the duration of the block."""
        names = [definition["metadata"]["name"] for definition in definitions]
        for definition in definitions:
            spec = definition["spec"]
            api = f"apis/{spec['group']}/{spec['versions'][0]['name']}"
            RESOURCES.setdefault(spec["names"]["plural"], (api, spec["scope"] == "Namespaced"))
            self.kube.apply("customresourcedefinitions", definition)
        for name in names:
            self._wait_established(name)
        try:
            yield
        finally:
            for name in names:
                self.kube.delete("customresourcedefinitions", name)
            wait_for("the kinds to be deleted", lambda: not self._defined(names))

    def _defined(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self.kube.find("customresourcedefinitions", name)]

    @staticmethod
    def resource_of(document: Object) -> str:
        """Map a kind to its resource name: for every kind used here, lower case with the English plural."""
        kind = str(document["kind"]).lower()
        return kind[:-1] + "ies" if kind.endswith("y") else kind + "s"

    def make_namespace(self, name: str, restricted: bool = True) -> str:
        """Create a namespace and wait for its default service account; `restricted` enforces that pod security
        standard."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
        self.kube.create("namespaces", {"metadata": {"name": name, "labels": labels}})
        wait_for("the default service account", lambda: self.kube.find("serviceaccounts", "default", name))
        return name

    def token_of(self, account: str, namespace: str, secret: Object | None = None) -> str:
        """A bearer token of a service account, as a pod has it. With `secret`, the token becomes invalid when the
        secret is deleted, like a pod's token when the pod is deleted."""
        bound = None
        if secret is not None:
            metadata = secret["metadata"]
            bound = {"apiVersion": "v1", "kind": "Secret", "name": metadata["name"], "uid": metadata["uid"]}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": bound},
        }
        answer = self.kube.post("serviceaccounts", account, "token", request, namespace)
        return str(answer["status"]["token"])

    def accepts(self, token: str) -> bool:
        """Whether the API server accepts the token."""
        client = Kube(self.kubeconfig_for(token, "doubtful"))
        try:
            client.list("namespaces")
        except ApiError as error:
            return error.code != 401
        finally:
            client.close()
        return True

    def proxy(self) -> FaultProxy:
        """A proxy to this API server, not yet started."""
        return FaultProxy(self.control_plane.server, self.control_plane.pki.ca)

    def kubeconfig_for(self, token: str, name: str, server: str | None = None) -> Path:
        """A kubeconfig with a bearer token, for the API server or for a proxy's `server`."""
        path = self.folder / f"{name}.kubeconfig"
        if server is not None:
            return kubeconfig(path, server, token=token)
        return kubeconfig(path, self.control_plane.server, self.control_plane.pki.ca, token=token)

    def audit(self) -> AuditLog:
        """Calls from now on."""
        return AuditLog(self.control_plane.audit_log)

    def _wait_established(self, name: str) -> None:
        def established() -> bool:
            definition = self.kube.get("customresourcedefinitions", name)
            conditions = definition.get("status", {}).get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions) and all(
                self.kube.code_of(path) == 200 for path in served_paths(definition)
            )

        wait_for(f"{name} to be established", established)


def served_paths(definition: Object) -> list[str]:
    """The paths that list all objects of a kind, one per version.

    The API server rejects them with 429 while it prepares the storage of a new or changed definition.
    """
    spec = definition["spec"]
    plural = spec["names"]["plural"]
    return [f"/apis/{spec['group']}/{version['name']}/{plural}" for version in spec["versions"] if version["served"]]
