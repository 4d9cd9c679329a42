"""`ballast-operator doctor`: checks the requirements of the operator and the NUMA policies of the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import (
    HTTP_ROUTE,
    INFERENCE_POOL,
    INFERENCE_SERVICE,
    MODEL_CACHE,
    NODE,
    NODE_TOPOLOGY,
    POD_MONITOR,
)
from ballast_operator.definitions import DEFINITIONS
from ballast_operator.rbac import CLUSTER_RULES, HOME_RULES, WATCHED_RULES, each_permission

Verdict = Literal["ok", "note", "FAIL"]

MAX_NODES = 50
INSTALL_DEFINITIONS = (
    "upgrade the chart's release with crds.install=true; without the chart, run "
    "kubectl apply --server-side -f charts/ballast/files/crd"
)
"""Definitions that the chart installed belong to Helm."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    verdict: Verdict
    text: str


async def examine(api: Api, namespace: str, account: str, watched: Sequence[str] = ()) -> AsyncIterator[Finding]:
    """Check the cluster and yield findings one by one.

    `namespace` and `account`: the service account that the operator runs as. `watched`: the namespaces where it looks
    for services; empty: all.
    """
    permissions = _permissions(api, namespace, account, watched)
    for part in (_definitions(api), _optional_kinds(api), permissions, _nodes(api)):
        try:
            async for finding in part:
                yield finding
        except ApiError as error:
            yield Finding("FAIL", str(error))


async def _definitions(api: Api) -> AsyncIterator[Finding]:
    for kind in (INFERENCE_SERVICE, MODEL_CACHE):
        name = f"{kind.plural}.{kind.group}"
        if not await api.knows(kind):
            yield Finding("FAIL", f"{name} is not installed: {INSTALL_DEFINITIONS}")
            continue
        live = await api.request("get", "GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        if _served_schemas(live) == _served_schemas(DEFINITIONS[kind.plural]()):
            yield Finding("ok", f"{name} has the version of this operator")
        else:
            yield Finding("FAIL", f"{name} has another version than this operator: {INSTALL_DEFINITIONS}")


def _served_schemas(definition: dict[str, Any]) -> dict[str, Any]:
    return {version["name"]: version["schema"] for version in definition["spec"]["versions"] if version["served"]}


async def _optional_kinds(api: Api) -> AsyncIterator[Finding]:
    for kind, gain in (
        (POD_MONITOR, "Prometheus discovers the engines"),
        (INFERENCE_POOL, "endpoint.inferencePool can create one"),
        (HTTP_ROUTE, "endpoint.route can create one"),
        (NODE_TOPOLOGY, "a pod is started only if one NUMA node has enough free CPUs and memory"),
    ):
        if await api.knows(kind):
            yield Finding("ok", f"{kind.name} is installed: {gain}")
        else:
            yield Finding("note", f"{kind.name} is not installed; with it, {gain}")


async def _permissions(api: Api, namespace: str, account: str, watched: Sequence[str]) -> AsyncIterator[Finding]:
    user = f"system:serviceaccount:{namespace}:{account}"
    missing, count = [], 0
    services = [(WATCHED_RULES, one) for one in watched or (None,)]
    for rules, where in (*services, (CLUSTER_RULES, None), (HOME_RULES, namespace)):
        for group, resource, verb in each_permission(rules):
            count += 1
            if not await _allowed(api, user, where, group, resource, verb):
                place = f" in {where}" if where in watched else ""
                missing.append(f"{verb} {resource}{f'.{group}' if group else ''}{place}")
    if missing:
        yield Finding("FAIL", f"{user} lacks permissions: {', '.join(missing)}; apply the chart or manifests/operator")
    else:
        yield Finding("ok", f"{user} has all {count} permissions")


async def _allowed(api: Api, user: str, namespace: str | None, group: str, resource: str, verb: str) -> bool:
    name, _, subresource = resource.partition("/")
    attributes: dict[str, Any] = {"group": group, "resource": name, "subresource": subresource, "verb": verb}
    if namespace is not None:
        attributes["namespace"] = namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = await api.request("review", "POST", path, body=review)
    return bool(answer["status"].get("allowed"))


async def _nodes(api: Api) -> AsyncIterator[Finding]:
    nodes = await api.list_all(NODE) or []
    for node in nodes[:MAX_NODES]:
        name = node["metadata"]["name"]
        try:
            config = await api.request("get", "GET", f"/api/v1/nodes/{name}/proxy/configz")
        except ApiError as error:
            yield Finding("note", f"node {name}: its kubelet's policies cannot be read ({error.message[:200]})")
            continue
        yield judge_kubelet(name, config["kubeletconfig"])
    if len(nodes) > MAX_NODES:
        yield Finding("note", f"{len(nodes) - MAX_NODES} more nodes were not checked")


def judge_kubelet(node: str, config: dict[str, Any]) -> Finding:
    """Whether a kubelet's settings pin pods to one NUMA node. Pure."""
    cpu = config.get("cpuManagerPolicy", "none")
    memory = config.get("memoryManagerPolicy", "None")
    topology = config.get("topologyManagerPolicy", "none")
    wrong = []
    if cpu != "static":
        wrong.append(f"cpuManagerPolicy is {cpu}; static gives exclusive CPUs")
    if memory != "Static":
        wrong.append(f"memoryManagerPolicy is {memory}; Static keeps memory on the NUMA node of the CPUs")
    if topology not in ("single-numa-node", "restricted"):
        keeps = "single-numa-node or restricted keeps CPUs, memory and devices of a pod together"
        wrong.append(f"topologyManagerPolicy is {topology}; {keeps}")
    if wrong:
        return Finding("note", f"node {node}: {'; '.join(wrong)}")
    return Finding("ok", f"node {node}: CPUs {cpu}, memory {memory}, topology {topology}")
