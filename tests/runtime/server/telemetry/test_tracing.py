"""Traces of requests: the spans that a collector gets from a server, and the headers that link traces."""

import json
import signal
import threading
import time

import httpx2
import pytest

from ballast.generation.admitted_job import Phases
from ballast.server.requests.record import Record
from ballast.server.telemetry.otlp import MAX_WAITING, OtlpExporter
from ballast.server.telemetry.spans import Span, read_parent, root
from ballast.server.telemetry.tracing import Tracer
from devkit.servers.collector import Collector, attributes
from devkit.servers.process import FAKE, ServerProcess

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(scope="module")
def collector():
    with Collector().serving() as found:
        yield found


@pytest.fixture(scope="module")
def server(collector):
    options = ("--otlp_endpoint", f"{collector.url}/", "--otlp_service_name", "letters", "--step_s", "0.01")
    with ServerProcess(*options, "--max_batch_size", "1", module=FAKE) as found:
        yield found


def chat(server, headers, **more):
    body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5, **more}
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    with httpx2.Client(timeout=60) as client:
        return client.post(url, json=body, headers=headers)


def spans_of(collector, trace_id, number):
    def of_it(spans):
        return [span for span in spans if span["traceId"] == trace_id]

    collector.wait(lambda spans: len(of_it(spans)) >= number)
    return {span["name"]: span for span in of_it(collector.spans)}


@pytest.mark.parametrize("stream", [False, True])
def test_a_traced_request_has_a_span_per_phase(server, collector, stream):
    trace_id = f"{TRACE[:-1]}{int(stream)}"
    before = time.time_ns()
    headers = {"traceparent": f"00-{trace_id}-{SPAN}-01", "tracestate": "vendor=1"}
    reply = chat(server, headers, stream=stream)
    assert reply.status_code == 200
    spans = spans_of(collector, trace_id, 5)
    whole = spans.pop(next(name for name in spans if name.startswith("POST ")))
    assert (whole["parentSpanId"], whole["kind"], whole["traceState"]) == (SPAN, 2, "vendor=1")
    assert reply.headers["traceresponse"] == f"00-{trace_id}-{whole['spanId']}-01"
    reported = attributes(whole)
    assert reported["http.response.status_code"] == "200"
    assert (reported["gen_ai.usage.input_tokens"], reported["gen_ai.usage.output_tokens"]) == ("4", "5")
    assert reported["ballast.request_id"] == reply.headers["x-request-id"]
    assert "status" not in whole
    assert sorted(spans, key=lambda name: int(spans[name]["startTimeUnixNano"])) == [
        *("prepare", "queue", "prefill", "decode"),
    ]
    assert {span["parentSpanId"] for span in spans.values()} == {whole["spanId"]}
    times = {name: (int(it["startTimeUnixNano"]), int(it["endTimeUnixNano"])) for name, it in spans.items()}
    for name, following in (("prepare", "queue"), ("queue", "prefill"), ("prefill", "decode")):
        assert times[name][0] <= times[name][1] == pytest.approx(times[following][0], abs=1000)
    assert times["decode"][1] - times["decode"][0] >= 4 * 10_000_000, "four steps after the first token"
    assert before - 10**9 <= int(whole["startTimeUnixNano"]) <= times["prepare"][0] + 1000
    assert int(whole["endTimeUnixNano"]) <= time.time_ns()


def test_a_request_that_waits_has_its_wait_in_the_queue(server, collector):
    first, second = (f"{digit}" * 32 for digit in "ab")
    threads = [
        threading.Thread(
            target=chat, args=(server, {"traceparent": f"00-{trace}-{SPAN}-01"}), kwargs={"max_tokens": 40}
        )
        for trace in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    waits = []
    for trace in (first, second):
        queue = spans_of(collector, trace, 5)["queue"]
        waits.append(int(queue["endTimeUnixNano"]) - int(queue["startTimeUnixNano"]))
    assert max(waits) >= 100_000_000, "one request had to wait for some of the other's 40 steps of 10 ms"


def test_unsampled_requests_and_probes_are_not_traced(server, collector):
    unsampled = "c" * 32
    reply = chat(server, {"traceparent": f"00-{unsampled}-{SPAN}-00"})
    assert reply.headers["traceresponse"].startswith(f"00-{unsampled}-")
    with httpx2.Client(timeout=60) as client:
        probe = client.get(f"http://127.0.0.1:{server.port}/readyz")
    assert "traceresponse" not in probe.headers
    own = chat(server, {}).headers["traceresponse"].split("-")[1]
    spans_of(collector, own, 5)
    assert unsampled not in {span["traceId"] for span in collector.spans}
    assert not [span for span in collector.spans if "readyz" in span["name"]]


def test_a_rejected_request_has_no_phases_and_spans_contain_no_text(server, collector):
    reply = chat(server, {}, max_tokens="SECRET")
    assert reply.status_code == 400
    (whole,) = spans_of(collector, reply.headers["traceresponse"].split("-")[1], 1).values()
    assert attributes(whole)["ballast.outcome"] == "client_error"
    assert "SECRET" not in json.dumps(collector.spans)


def test_spans_go_to_the_otlp_path_with_the_given_service_name(server, collector):
    chat(server, {})
    collector.wait(bool)
    assert set(collector.paths) == {("/v1/traces", "application/json")}
    assert {resource["service.name"] for resource in collector.resources} == {"letters"}
    assert {resource["ballast.device"] for resource in collector.resources} == {"cpu"}


def test_without_a_collector_there_is_no_tracing():
    with ServerProcess(module=FAKE) as server:
        assert "traceresponse" not in chat(server, {"traceparent": PARENT}).headers


def test_the_last_spans_are_sent_at_exit_and_a_dead_collector_is_harmless():
    with Collector().serving() as last:
        with ServerProcess("--otlp_endpoint", last.url, module=FAKE) as server:
            trace = chat(server, {}).headers["traceresponse"].split("-")[1]
            server.send_signal(signal.SIGTERM)
            assert server.wait() == 0
        assert [span["traceId"] for span in last.spans] == [trace] * 5
        url = last.url
    with ServerProcess("--otlp_endpoint", url, module=FAKE) as server:
        assert chat(server, {}).status_code == 200
        assert server.event("spans were dropped")["spans"] == 5


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (PARENT, True),
        (f" {PARENT} ", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("", None),
        ("x" * 100_000, None),
    ],
)
def test_a_traceparent_is_parsed_according_to_w3c(header, sampled):
    found = read_parent(header)
    assert (found and found.sampled) is sampled
    if found is not None:
        assert (found.trace_id, found.span_id) == (TRACE, SPAN)


@pytest.mark.parametrize("state", ["x" * 513, "a=\nb", "a=é"])
def test_an_invalid_tracestate_is_dropped(state):
    found = read_parent(PARENT, state)
    assert found is not None
    assert found.state == ""


def test_a_fraction_of_requests_without_a_trace_is_traced():
    chosen = iter([0.1, 0.5, 0.24])
    tracer = Tracer(lambda spans: None, 0.25, lambda: next(chosen))
    assert [tracer.begin({}).sampled for _ in range(3)] == [True, False, True]
    assert tracer.begin({"traceparent": PARENT}).sampled


@pytest.mark.parametrize(
    ("phases", "names"),
    [
        (None, []),
        (Phases(2.0, 0.0, 0.0, 0.0), ["prepare", "queue"]),
        (Phases(2.0, 3.0, 0.0, 0.0), ["prepare", "queue", "prefill"]),
        (Phases(2.0, 3.0, 4.0, 5.0), ["prepare", "queue", "prefill", "decode"]),
    ],
)
def test_an_aborted_request_has_spans_for_the_phases_it_began(phases, names):
    got = []
    tracer = Tracer(got.extend, 1.0)
    record = Record("id", started=1.0, status=504, outcome="timeout", phases=phases)
    tracer.end(tracer.begin({}), record, "POST")
    assert [span.name for span in got[1:]] == names
    assert got[0].failed
    assert all(span.start_ns <= span.end_ns for span in got)


def test_spans_that_wait_are_bounded():
    exporter = OtlpExporter("http://127.0.0.1:9", {})
    span = Span(root(sampled=True), "x", "internal", 0, 1)
    for _ in range(3):
        exporter.put([span] * MAX_WAITING)
    assert len(exporter._waiting) == MAX_WAITING
    assert exporter._dropped == 2 * MAX_WAITING
