"""The metrics page: dashboards depend on its names, labels and types."""

import contextlib
import json
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ballast import __version__
from ballast.engine.publishing import Snapshot
from ballast.engine.tier_mover import TierNumbers
from ballast.metric import declared
from ballast.model.device_counts import DeviceCounts
from ballast.server.telemetry.vram_metrics import VramProbe
from devkit.servers.process import FAKE, JSON, ServerProcess

GAUGES = {
    "ballast_batch_slots",
    "ballast_batch_running",
    "ballast_batch_occupancy_ratio",
    "ballast_requests_waiting",
    "ballast_predicted_wait_seconds",
    "ballast_kv_cache_capacity_tokens",
    "ballast_kv_cache_used_tokens",
    "ballast_kv_cache_cached_tokens",
    "ballast_kv_cache_window_cached_tokens",
    "ballast_kv_cache_window_used_tokens",
    "ballast_recurrent_snapshots",
    "ballast_recurrent_snapshot_bytes",
    "ballast_recurrent_slots",
    "ballast_recurrent_slots_used",
    "ballast_kv_cache_usage_ratio",
    "ballast_kv_tier_capacity_tokens",
    "ballast_kv_tier_cached_tokens",
    "ballast_kv_tier_recurrent_states",
    "ballast_kv_tier_fetching",
    "ballast_model_load_progress_ratio",
    "ballast_decode_graphs",
    "ballast_resident_experts",
    "ballast_pcie_share_ratio",
    "ballast_switched_off",
    "ballast_start_seconds",
    "ballast_step_cost_seconds",
    "ballast_vram_allocated_bytes",
    "ballast_vram_reserved_bytes",
    "ballast_vram_limit_bytes",
    "ballast_engine_heartbeat_timestamp_seconds",
    "ballast_numa_expert_bytes",
    "ballast_numa_mempolicy_available",
    "ballast_host_pinned_bytes",
    "ballast_numa_local_ratio",
    "ballast_numa_threads_pinned",
    "ballast_build_info",
    "ballast_model_info",
}
COUNTERS = {
    "ballast_prompt_tokens",
    "ballast_generation_tokens",
    "ballast_prefix_cache_query_tokens",
    "ballast_prefix_cache_hit_tokens",
    "ballast_prefix_cache_cut_tokens",
    "ballast_recurrent_snapshot_hits",
    "ballast_recurrent_snapshots_evicted",
    "ballast_kv_tier_hit_tokens",
    "ballast_kv_tier_dropped_tokens",
    "ballast_kv_tier_stored_bytes",
    "ballast_kv_tier_fetched_bytes",
    "ballast_kv_tier_wait_seconds",
    "ballast_preemptions",
    "ballast_expert_weight_bytes_read",
    "ballast_expert_weight_bytes_over_pcie",
    "ballast_expert_selections",
    "ballast_expert_hits",
    "ballast_moved_experts",
    "ballast_moved_expert_bytes",
    "ballast_streamed_steps",
    "ballast_saturated_numbers",
    "ballast_requests",
    "ballast_finished",
    "ballast_ignored_fields",
    "ballast_lowered_max_tokens",
}
HISTOGRAMS = {
    "ballast_time_to_first_token_seconds",
    "ballast_inter_token_latency_seconds",
    "ballast_request_duration_seconds",
    "ballast_request_generation_tokens",
    "ballast_request_prompt_tokens",
    "ballast_request_queue_seconds",
    "ballast_step_seconds",
    "ballast_step_tokens",
}
ALIASES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_success": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
}


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--step_s", "0.02", "--max_batch_size", "4", module=FAKE) as process:
        complete(process, max_tokens=6)
        process.wait_until_empty()
        yield process


def complete(server, **fields):
    data = json.dumps({"prompt": "abcdefg", **fields}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", data, JSON)
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()


def families(server):
    _, headers, page = server.get("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=")
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def test_the_page_has_the_promised_names_with_the_promised_types(server):
    types = {name: family.type for name, family in families(server).items()}
    expected = (
        dict.fromkeys(GAUGES, "gauge") | dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(HISTOGRAMS, "histogram")
    )
    ours = {name: kind for name, kind in types.items() if not name.startswith("process_")}
    assert ours == expected | ALIASES


def test_every_declared_metric_is_exported_with_help_and_type(server):
    shown = families(server)
    for kind in (Snapshot, DeviceCounts, TierNumbers):
        metrics = declared(kind)
        assert metrics
        for metric in metrics.values():
            family = shown[f"ballast_{metric.name}"]
            assert (family.documentation, family.type) == (metric.help, type(metric).__name__.lower())


def test_aliases_carry_the_model_and_the_same_numbers(server):
    metrics = server.metrics()
    label = '{model_name="alphabet"}'
    for alias, own in {
        "vllm:num_requests_running": "ballast_batch_running",
        "vllm:kv_cache_usage_perc": "ballast_kv_cache_usage_ratio",
        "vllm:prompt_tokens_total": "ballast_prompt_tokens_total",
        "vllm:generation_tokens_total": "ballast_generation_tokens_total",
        "vllm:time_to_first_token_seconds_count": "ballast_time_to_first_token_seconds_count",
        "vllm:time_to_first_token_seconds_sum": "ballast_time_to_first_token_seconds_sum",
        "vllm:inter_token_latency_seconds_count": "ballast_inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count": "ballast_request_duration_seconds_count",
        "vllm:request_queue_time_seconds_count": "ballast_request_queue_seconds_count",
        "vllm:request_prompt_tokens_sum": "ballast_request_prompt_tokens_sum",
        "vllm:request_generation_tokens_sum": "ballast_request_generation_tokens_sum",
        "vllm:prefix_cache_queries_total": "ballast_prefix_cache_query_tokens_total",
        "vllm:prefix_cache_hits_total": "ballast_prefix_cache_hit_tokens_total",
        "vllm:num_preemptions_total": "ballast_preemptions_total",
    }.items():
        assert metrics[alias + label] == metrics[own], alias


def test_a_request_is_counted_once_in_every_metric(server):
    before = server.metrics()
    complete(server, max_tokens=5)
    server.wait_until_empty()
    after = server.metrics()
    assert after['vllm:request_success_total{finished_reason="length",model_name="alphabet"}'] >= 1
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["ballast_prompt_tokens_total"] == 8
    assert grown["ballast_generation_tokens_total"] == 5
    assert grown["ballast_time_to_first_token_seconds_count"] == 1
    assert grown["ballast_inter_token_latency_seconds_count"] == 4
    assert grown["ballast_request_duration_seconds_count"] == 1
    assert grown["ballast_request_queue_seconds_count"] == 1
    assert grown['ballast_finished_total{reason="length"}'] == 1
    assert grown['ballast_finished_total{reason="stop"}'] == 0
    assert grown["ballast_request_prompt_tokens_sum"] == 8
    assert grown["ballast_request_generation_tokens_sum"] == 5
    assert grown['ballast_requests_total{endpoint="completions",outcome="ok"}'] == 1
    assert grown['ballast_step_seconds_count{kind="prefill"}'] == 1
    assert grown['ballast_step_seconds_count{kind="decode"}'] == 4
    assert grown["ballast_step_tokens_sum"] == 8 + 4


def counts(server):
    """Values of the request counter, by labels."""
    return {name: value for name, value in server.metrics().items() if name.startswith("ballast_requests_total")}


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_probes_scrapes_and_other_requests_that_only_read_are_not_counted(server, method):
    before = counts(server)
    paths = ("/livez", "/livez/", "/readyz", "/health", "/v1/health", "/ping", "/metrics", "/load", "/slots", "/props")
    for path in (*paths, "/occupancy", "/version", "/debug/state", "/v1/models", "/api/tags", "/", "/nothing-here"):
        request = urllib.request.Request(server.url + path, method=method)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=30) as response:
            response.read()
    assert counts(server) == before


def test_a_probe_by_post_is_not_counted_and_a_refused_request_is(server):
    before = counts(server)
    for path in ("/ping", "/v1/completions"):
        request = urllib.request.Request(server.url + path, b"{", JSON)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=30) as response:
            response.read()
    grown = {name: value - before.get(name, 0) for name, value in counts(server).items()}
    assert {name: value for name, value in grown.items() if value} == {
        'ballast_requests_total{endpoint="completions",outcome="client_error"}': 1
    }


def test_the_costs_of_steps_have_their_lane_and_number_of_tokens():
    with ServerProcess("--step_s", "0.02", "--max_queue_wait_s", "100", module=FAKE) as server:
        complete(server, max_tokens=1)
        server.wait_until_empty()
        samples = families(server)["ballast_step_cost_seconds"].samples
    assert all(sample.labels.keys() == {"lane", "tokens"} for sample in samples)
    assert {sample.labels["lane"] for sample in samples} == {"decode", "decode_in_pass"}, (
        "without a GPU there is no prefill lane"
    )
    for lane in ("decode", "decode_in_pass"):
        tokens = [int(sample.labels["tokens"]) for sample in samples if sample.labels["lane"] == lane]
        assert tokens[0] == 1
        assert tokens == sorted(set(tokens))
    assert all(sample.value >= 0.02 for sample in samples)


def test_gauges_follow_a_request(server):
    data = json.dumps({"prompt": "x" * 100, "max_tokens": 900, "stream": True}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", data, JSON)
    with urllib.request.urlopen(request, timeout=30):
        now = server.metrics()
        assert now["ballast_batch_running"] == 1
        assert now["ballast_batch_occupancy_ratio"] == 0.25
        assert now["ballast_kv_cache_used_tokens"] >= 101
        ratio = now["ballast_kv_cache_used_tokens"] / now["ballast_kv_cache_capacity_tokens"]
        assert now["ballast_kv_cache_usage_ratio"] == ratio
    server.wait_until_empty()


def test_build_and_model_are_reported(server):
    metrics = server.metrics()
    (build,) = (name for name in metrics if name.startswith("ballast_build_info"))
    assert f'version="{__version__}"' in build
    assert 'device="cpu"' in build
    assert metrics['ballast_model_info{model_name="alphabet"}'] == 1
    assert json.loads(server.get("/version")[2]) == {"version": __version__}


def test_aliases_can_be_disabled():
    with ServerProcess("--metrics_alias", "none", module=FAKE) as server:
        assert not [name for name in families(server) if name.startswith("vllm:")]


def test_debug_state_shows_live_requests_without_their_text(server):
    data = json.dumps({"prompt": "topsecret", "max_tokens": 900, "stream": True}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", data, {**JSON, "X-Request-Id": "mine"})
    with urllib.request.urlopen(request, timeout=30):
        _, _, page = server.get("/debug/state")
    state = json.loads(page)
    assert (state["state"], state["device"]) == ("ready", "cpu")
    assert [entry["id"] for entry in state["requests"]] == ["mine"]
    assert state["numbers"]["running"] == 1
    assert state["switched_off"] == {}
    assert b"topsecret" not in page
    server.wait_until_empty()


def test_a_gpus_memory_is_shown_and_zero_without_one():
    def found(metric):
        return {sample.labels["device"]: sample.value for sample in metric.samples}

    requested = []

    def taken(device):
        requested.append(device)
        return 3, 4

    assert {metric.name: found(metric) for metric in VramProbe(("cuda:1", "cuda:0"), (5, None), taken).collect()} == {
        "ballast_vram_allocated_bytes": {"cuda:1": 3, "cuda:0": 3},
        "ballast_vram_reserved_bytes": {"cuda:1": 4, "cuda:0": 4},
        "ballast_vram_limit_bytes": {"cuda:1": 5, "cuda:0": 0},
    }
    assert [found(metric) for metric in VramProbe((), (), taken).collect()] == [{"cpu": 0}] * 3
    assert requested == ["cuda:1", "cuda:0"], "a server without a GPU must not load torch"
