"""The children that a spec requests. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ballast_operator.api.inference_service import InferenceService, SpecError
from ballast_operator.api.model_cache import ModelCache
from ballast_operator.child_options import ChildOptions
from ballast_operator.limits.allowed import AllowLists
from ballast_operator.limits.refusals import why_cache_not_allowed, why_not_allowed
from ballast_operator.names import Ref
from ballast_operator.resources.configmap import build_rules
from ballast_operator.resources.httproute import build_http_route
from ballast_operator.resources.inferencepool import build_inference_pool
from ballast_operator.resources.networkpolicy import build_network_policy
from ballast_operator.resources.pdb import build_pdb
from ballast_operator.resources.pod import Attempt, build_pod
from ballast_operator.resources.podmonitor import build_pod_monitor
from ballast_operator.resources.pulling.cache_job import found_model
from ballast_operator.resources.pulling.pull_job import build_pull_job, build_pull_policy
from ballast_operator.resources.service import build_service

OPTIONAL_CHILDREN = ("PodMonitor", "InferencePool", "HTTPRoute")
"""Kinds of children that a cluster may lack."""


def desired_children(
    service: InferenceService, options: ChildOptions, known: Collection[str] = OPTIONAL_CHILDREN
) -> list[dict[str, Any]]:
    """All children except pods, in the order of applying. `known`: names of optional kinds that the cluster has."""
    spec = service.spec
    children = []
    if spec.engine.placement_rules is not None and spec.engine.placement_rules.inline is not None:
        children.append(build_rules(service, spec.engine.placement_rules.inline))
    children.append(build_service(service))
    children.append(build_pdb(service))
    if spec.endpoint.network_policy is not None:
        children.append(build_network_policy(service, spec.endpoint.network_policy, options, known))
    if "PodMonitor" in known:
        children.append(build_pod_monitor(service, options))
    if spec.endpoint.inference_pool is not None and "InferencePool" in known:
        children.append(build_inference_pool(service, spec.endpoint.inference_pool))
    if spec.endpoint.route is not None and "HTTPRoute" in known:
        children.append(build_http_route(service, spec.endpoint.route))
    return children


def kinds_missing(service: InferenceService, known: Collection[str]) -> list[str]:
    """Messages about requested kinds that the cluster does not have."""
    endpoint = service.spec.endpoint
    optional = (
        (
            *("inferencePool", endpoint.inference_pool, "InferencePool", "inference.networking.k8s.io/v1"),
            "Gateway API inference extension",
        ),
        ("route", endpoint.route, "HTTPRoute", "gateway.networking.k8s.io/v1", "Gateway API"),
    )
    return [
        f"endpoint.{field} needs the kind {kind} of {group}, which this cluster lacks: install the {project}"
        for field, value, kind, group, project in optional
        if value is not None and kind not in known
    ]


def rendered(
    service: InferenceService, options: ChildOptions, caches: Mapping[Ref, ModelCache] | None = None
) -> list[dict[str, Any]]:
    """All children of a new service, pods included, on a cluster that has every kind and these ModelCaches.

    Raises SpecError if the operator with these options would reject the spec.
    """
    service = _with_cached_model(service, caches or {}, options.allowed)
    if (refusal := why_not_allowed(service.spec, options.allowed)) is not None:
        raise SpecError(refusal)
    source = service.spec.model.source.pulled
    pull = (
        [build_pull_policy(service, source, options, None), build_pull_job(service, source, options)] if source else []
    )
    pods = [build_pod(service, options, Attempt(replica)) for replica in range(service.spec.replicas)]
    return [*desired_children(service, options), *pull, *pods]


def _with_cached_model(
    service: InferenceService, caches: Mapping[Ref, ModelCache], allowed: AllowLists
) -> InferenceService:
    """The service with its cached model, without a condition on nodes."""
    source = service.spec.model.source.cache
    if source is None:
        return service
    cache = caches.get(Ref(service.ref.namespace, source.name))
    model = None if cache is None else cache.model(source.model)
    if cache is None or model is None:
        raise SpecError(
            f"model.source.cache: this file has no ModelCache {source.name} with a model {source.model}; add it"
        )
    if (refusal := why_cache_not_allowed(cache.spec, allowed)) is not None:
        raise SpecError(f"ModelCache {source.name}: {refusal}")
    return replace(service, cached=replace(found_model(cache, model, ()), nodes=None))
