"""Spans of a real operator's passes, as received by a collector."""

from __future__ import annotations

from devkit.cluster.cluster import Cluster
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_ready
from devkit.servers.collector import Collector, Object, attributes


def test_each_pass_is_a_span_that_names_its_service(cluster: Cluster, answers: PodAnswers, namespace: str) -> None:
    install(cluster)
    with Collector().serving() as collector:
        options = ("--resync-seconds", "5", "--otlp-endpoint", collector.url)
        operator = OperatorProcess(cluster, "traced", answers.url, *options)
        operator.start()
        try:
            operator.wait_leading()
            cluster.kube.create("inferenceservices", service("chat"), namespace)
            wait_ready(cluster.kube, namespace, "chat")
            collector.wait(lambda spans: any(wrote(span, namespace) for span in spans))
            collector.wait(lambda spans: any(span["name"] == "resync" for span in spans))
        finally:
            operator.stop()
        assert operator.exit_code == 0, operator.log_tail()
    assert {resource["service.name"] for resource in collector.resources} == {"ballast-operator"}
    assert {resource["service.instance.id"] for resource in collector.resources} == {"traced"}


def wrote(span: Object, namespace: str) -> bool:
    """Whether the span is a pass that created the children, with at least one request for each."""
    reported = attributes(span)
    of_service = (reported.get("k8s.namespace.name"), reported.get("ballast.service")) == (namespace, "chat")
    return span["name"] == "reconcile" and of_service and int(reported["ballast.api_requests"]) >= 4
