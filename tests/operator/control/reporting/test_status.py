"""The fields of the status other than its conditions."""

from datetime import timedelta

import pytest
from builders import NOW, pod, seen, service

from ballast_operator.control.reporting.evidence import Evidence, PodReport
from ballast_operator.control.reporting.numa_findings import MALFORMED
from ballast_operator.control.reporting.status import build_status, read_effective


def test_the_status_of_the_same_evidence_is_the_same():
    first = build_status(service(), seen(pod()), {}, NOW).to_api()
    assert build_status(service(), seen(pod()), first, NOW + timedelta(hours=1)).to_api() == first
    assert (first["observedGeneration"], first["readyReplicas"], first["nodes"]) == (3, 1, "n1")


def test_devices_of_engines_that_differ_are_told_apart():
    requested = service(replicas=2, resources={"cpus": 2, "memory": "1Gi", "gpus": 2})
    pods = [pod(replica, of=requested) for replica in (0, 1)]
    reports = {each.uid: PodReport(device=device) for each, device in zip(pods, ("cuda:0,cuda:1", "cpu"), strict=True)}
    found = build_status(requested, Evidence(pods=tuple(pods), reports=reports), {}, NOW).to_api()
    assert found["device"] == {"asked": "cuda", "used": "cpu; cuda:0,cuda:1"}


def test_effective_values_are_the_engines_own():
    numbers = {"batch_slots": 4, "capacity_tokens": 5024}
    found = {"kvCacheTokens": 5024, "guaranteedConcurrency": 4, "guaranteedPromptTokens": 256, "maxNewTokens": 1000}
    requested, left_out = service(engine={"maxNewTokens": 1000, "cacheLens": 5000}), service()
    assert read_effective(requested, {"numbers": numbers}).to_api() == found, "an older runtime does not report it"
    assert read_effective(left_out, {"numbers": {**numbers, "max_new_tokens": 1000}}).to_api() == found
    with pytest.raises(MALFORMED):
        read_effective(left_out, {"numbers": numbers})
    planned = {"host": 3 * 2**20 + 1, "device": 2**30}
    effective = read_effective(requested, {"numbers": numbers, "planned_bytes": planned})
    assert (effective.planned_memory, effective.planned_gpu_memory) == ("4Mi", "1024Mi")
