"""A small synchronous client: plain JSON in and out, every status code visible."""

from __future__ import annotations

import json
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import httpx
import yaml

from devkit.manifests import objects_of

Object = dict[str, Any]

# resource name -> (API path, is namespaced), for the resources that tests use. After a dot: a version other than the
# default.
RESOURCES: dict[str, tuple[str, bool]] = {
    "namespaces": ("api/v1", False),
    "nodes": ("api/v1", False),
    "pods": ("api/v1", True),
    "services": ("api/v1", True),
    "configmaps": ("api/v1", True),
    "secrets": ("api/v1", True),
    "resourcequotas": ("api/v1", True),
    "events": ("api/v1", True),
    "serviceaccounts": ("api/v1", True),
    "persistentvolumes": ("api/v1", False),
    "persistentvolumeclaims": ("api/v1", True),
    "deployments": ("apis/apps/v1", True),
    "statefulsets": ("apis/apps/v1", True),
    "controllerrevisions": ("apis/apps/v1", True),
    "jobs": ("apis/batch/v1", True),
    "poddisruptionbudgets": ("apis/policy/v1", True),
    "networkpolicies": ("apis/networking.k8s.io/v1", True),
    "endpointslices": ("apis/discovery.k8s.io/v1", True),
    "leases": ("apis/coordination.k8s.io/v1", True),
    "clusterroles": ("apis/rbac.authorization.k8s.io/v1", False),
    "clusterrolebindings": ("apis/rbac.authorization.k8s.io/v1", False),
    "roles": ("apis/rbac.authorization.k8s.io/v1", True),
    "rolebindings": ("apis/rbac.authorization.k8s.io/v1", True),
    "priorityclasses": ("apis/scheduling.k8s.io/v1", False),
    "mutatingwebhookconfigurations": ("apis/admissionregistration.k8s.io/v1", False),
    "validatingadmissionpolicies": ("apis/admissionregistration.k8s.io/v1", False),
    "validatingadmissionpolicybindings": ("apis/admissionregistration.k8s.io/v1", False),
    "customresourcedefinitions": ("apis/apiextensions.k8s.io/v1", False),
    "inferenceservices": ("apis/serving.ballast.dev/v1beta1", True),
    "modelcaches": ("apis/serving.ballast.dev/v1beta1", True),
    "inferenceservices.v1alpha1": ("apis/serving.ballast.dev/v1alpha1", True),
    "modelcaches.v1alpha1": ("apis/serving.ballast.dev/v1alpha1", True),
    "runtimeclasses": ("apis/node.k8s.io/v1", False),
    "deviceclasses": ("apis/resource.k8s.io/v1", False),
    "resourceslices": ("apis/resource.k8s.io/v1", False),
    "resourceclaims": ("apis/resource.k8s.io/v1", True),
    "resourceclaimtemplates": ("apis/resource.k8s.io/v1", True),
    "horizontalpodautoscalers": ("apis/autoscaling/v2", True),
    "apiservices": ("apis/apiregistration.k8s.io/v1", False),
    "inferencepools": ("apis/inference.networking.k8s.io/v1", True),
    "httproutes": ("apis/gateway.networking.k8s.io/v1", True),
    "podmonitors": ("apis/monitoring.coreos.com/v1", True),
}


class ApiError(Exception):
    """A rejection by the API server; `status` is its Status object."""

    def __init__(self, code: int, status: Object) -> None:
        super().__init__(f"{code} {status.get('reason', '')}: {status.get('message', '')}")
        self.code = code
        self.status = status

    @property
    def message(self) -> str:
        return str(self.status.get("message", ""))


UNANSWERED = (ApiError, httpx.TransportError)
"""Errors of a call that the API server rejects, or does not answer because it restarts."""


class Kube:
    """Calls as the user in a kubeconfig file that contains its certificates."""

    def __init__(self, config_path: Path, timeout_s: float = 60) -> None:
        config = yaml.safe_load(config_path.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._http = httpx.Client(
            base_url=cluster["server"], verify=_tls(cluster, user), headers=headers, timeout=timeout_s, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        try:
            return self._http.get("/readyz", timeout=30).text == "ok"
        except httpx.TransportError:
            return False

    def get(self, resource: str, name: str, namespace: str | None = None) -> Object:
        return self._call("GET", path_of(resource, namespace, name))

    def find(self, resource: str, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None if it does not exist."""
        try:
            return self.get(resource, name, namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def versions_after(self, version: str, resource: str, name: str, namespace: str) -> list[Object]:
        """The versions of an object after this resource version, oldest first."""
        params = {"watch": "true", "resourceVersion": version, "fieldSelector": f"metadata.name={name}"}
        response = self._http.get(path_of(resource, namespace), params=params | {"timeoutSeconds": "1"})
        if response.is_error:
            raise ApiError(response.status_code, _status(response))
        events = [json.loads(line) for line in response.text.splitlines()]
        if failed := [event["object"] for event in events if event["type"] == "ERROR"]:
            raise ApiError(failed[0]["code"], failed[0])
        return [event["object"] for event in events]

    def list(
        self,
        resource: str,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        at: str | None = None,
    ) -> list[Object]:
        """Objects of one namespace, or of all; sorted by namespace and name like the API server's lists. `at`: their
        state at this resource version."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        params = {name: ",".join(f"{k}={v}" for k, v in found.items()) for name, found in selectors.items() if found}
        if at is not None:
            params |= {"resourceVersion": at, "resourceVersionMatch": "Exact"}
        items: list[Object] = self._call("GET", path_of(resource, namespace), params=params)["items"]
        return items

    def create(self, resource: str, body: Object, namespace: str | None = None) -> Object:
        namespace = namespace or body.get("metadata", {}).get("namespace")
        return self._call("POST", path_of(resource, namespace), body=body)

    def merge(
        self, resource: str, name: str, patch: Object, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        """JSON merge patch: None removes a field."""
        path = path_of(resource, namespace, name, subresource)
        return self._call("PATCH", path, body=patch, content_type="application/merge-patch+json")

    def apply(
        self,
        resource: str,
        body: Object,
        namespace: str | None = None,
        manager: str = "tests",
        subresource: str | None = None,
    ) -> Object:
        """Server-side apply; takes over conflicting fields."""
        namespace = namespace or body["metadata"].get("namespace")
        path = path_of(resource, namespace, body["metadata"]["name"], subresource)
        params = {"fieldManager": manager, "force": "true"}
        return self._call("PATCH", path, body=body, params=params, content_type="application/apply-patch+yaml")

    def would_accept(self, resource: str, body: Object, namespace: str | None = None) -> Object:
        """Dry-run creation that rejects unknown fields; returns the resulting object. Raises ApiError."""
        namespace = body["metadata"].get("namespace") or namespace
        params = {"dryRun": "All", "fieldValidation": "Strict"}
        return self._call("POST", path_of(resource, namespace), body=body, params=params)

    def try_merge(self, resource: str, name: str, patch: Object, namespace: str, subresource: str) -> Object:
        """Dry run of `merge`; returns the resulting object."""
        path = path_of(resource, namespace, name, subresource)
        content_type = "application/merge-patch+json"
        return self._call("PATCH", path, body=patch, params={"dryRun": "All"}, content_type=content_type)

    def delete(self, resource: str, name: str, namespace: str | None = None, **options: Any) -> None:
        self._call("DELETE", path_of(resource, namespace, name), body=options or None)

    def post(self, resource: str, name: str, subresource: str, body: Object, namespace: str | None = None) -> Object:
        """Create a subresource, for example "eviction" of a pod or "token" of a service account."""
        return self._call("POST", path_of(resource, namespace, name, subresource), body=body)

    def put(self, resource: str, name: str, subresource: str, body: Object, namespace: str | None = None) -> Object:
        """Replace a subresource, for example "finalize" of a namespace."""
        return self._call("PUT", path_of(resource, namespace, name, subresource), body=body)

    def post_to(self, path: str, body: Object) -> Object | None:
        """Create an object of a kind that is not in RESOURCES; None while the API server does not serve it."""
        try:
            return self._call("POST", path, body=body)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def code_of(self, path: str) -> int:
        """The status code of a GET."""
        return self._http.get(path).status_code

    def raw(self, path: str) -> str:
        response = self._http.get(path)
        response.raise_for_status()
        return response.text

    def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        response = self._http.request(method, path, content=content, params=params, headers=headers)
        if response.is_error:
            raise ApiError(response.status_code, _status(response))
        answer: Object = response.json()
        return answer


def path_of(
    resource: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None
) -> str:
    """For example ("pods", "default", "a", "eviction") -> /api/v1/namespaces/default/pods/a/eviction."""
    api, namespaced = RESOURCES[resource]
    parts = [api]
    if namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    plural = resource.partition(".")[0]
    return "/" + "/".join([*parts, *(part for part in (plural, name, subresource) if part)])


def documents(path: Path) -> Iterator[Object]:
    """The objects of a YAML file."""
    yield from objects_of(path.read_text())


def _status(response: httpx.Response) -> Object:
    try:
        status = response.json()
    except ValueError:
        status = None
    return status if isinstance(status, dict) else {"message": response.text}


def _tls(cluster: Object, user: Object) -> ssl.SSLContext | bool:
    if not cluster["server"].startswith("https:"):
        return False
    context = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    if "client-certificate-data" in user:
        with NamedTemporaryFile() as cert, NamedTemporaryFile() as key:
            Path(cert.name).write_bytes(b64decode(user["client-certificate-data"]))
            Path(key.name).write_bytes(b64decode(user["client-key-data"]))
            context.load_cert_chain(cert.name, key.name)
    return context
