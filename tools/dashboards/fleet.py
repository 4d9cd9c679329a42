"""The dashboard of all services and of the operator."""

from __future__ import annotations

from tools.dashboards.grafana import BY_SERVICE, FLEET, Dashboard, Panel, Query, Row, Variable, marks, rate

OPERATOR_P95 = (
    "histogram_quantile(0.95, sum by (le) (rate(ballast_operator_reconcile_seconds_bucket[$__rate_interval])))"
)

ERRORS = (
    f'(sum{{by}} (rate(ballast_requests_total{{{{{FLEET},outcome=~"error|timeout"}}}}[$__rate_interval])) or '
    f"0 * sum{{by}} (rate(ballast_requests_total{{{{{FLEET}}}}}[$__rate_interval]))) / "
    f"sum{{by}} (rate(ballast_requests_total{{{{{FLEET}}}}}[$__rate_interval]))"
)

ALL = Dashboard(
    "ballast-fleet",
    "Ballast / fleet and operator",
    (Variable("namespace", "Namespace", "label_values(ballast_operator_service_condition, namespace)"),),
    (
        Row(
            "Services",
            (
                Panel(
                    "Ready",
                    "Services that are ready, of all. The table beside says why the others are not.",
                    (
                        Query(
                            f'sum(ballast_operator_service_condition{{{FLEET},condition="Ready",status="True"}}) or vector(0)',
                            "ready",
                        ),
                        Query(f'count(ballast_operator_service_condition{{{FLEET},condition="Ready"}})', "all"),
                    ),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Not ready",
                    "Services that the operator does not find ready. Red from the first one; the table says which and why.",
                    (
                        Query(
                            f'count(ballast_operator_service_condition{{{FLEET},condition="Ready",status!="True"}}) '
                            "or vector(0)",
                            "not ready",
                        ),
                    ),
                    kind="stat",
                    width=6,
                    thresholds=((1, "red"),),
                ),
                Panel(
                    "Errors",
                    "Share of ended requests that ended by a fault or out of time, of all services. Refused requests and "
                    "clients that left are not among them.",
                    (Query(ERRORS.format(by=""), "errors"),),
                    unit="percentunit",
                    kind="stat",
                    width=6,
                    thresholds=((0.001, "orange"), (0.01, "red")),
                    maximum=1,
                ),
                Panel(
                    "Alerts",
                    "Alerts of Ballast that fire now; docs/kubernetes/monitoring.md lists their pages.",
                    (Query('count(ALERTS{alertname=~"Ballast.+",alertstate="firing"}) or vector(0)', "firing"),),
                    kind="stat",
                    width=6,
                    thresholds=((1, "red"),),
                ),
                Panel(
                    "Conditions",
                    "What the operator finds of each service, with its reason; what is false comes first. "
                    "docs/kubernetes/troubleshooting.md goes through the reasons. A service's name leads to its dashboard.",
                    (Query(f'ballast_operator_service_condition{{{FLEET},condition!="Progressing"}}'),),
                    kind="table",
                    width=24,
                    columns=("namespace", "service", "condition", "status", "reason"),
                ),
                Panel(
                    "Error ratio",
                    "Ended requests that ended by a fault or out of time, by service. Look at the pod's log.",
                    (Query(ERRORS.format(by=" by (namespace, service)"), BY_SERVICE),),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Tokens per second",
                    "Generated, by service.",
                    (Query(rate("ballast_generation_tokens_total", "namespace, service", FLEET), BY_SERVICE),),
                    stacked=True,
                ),
                Panel(
                    "Batch occupancy",
                    "By service. Low everywhere: fewer replicas would do.",
                    (
                        Query(
                            f"sum by (namespace, service) (ballast_batch_running{{{FLEET}}}) / "
                            f"sum by (namespace, service) (ballast_batch_slots{{{FLEET}}})",
                            BY_SERVICE,
                        ),
                    ),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Waiting requests",
                    "By service. One that grows: docs/kubernetes/alerts/queue-growing.md.",
                    (Query(f"sum by (namespace, service) (ballast_requests_waiting{{{FLEET}}})", BY_SERVICE),),
                ),
                Panel(
                    "KV cache used",
                    "Fullest pod of each service.",
                    (Query(f"max by (namespace, service) (ballast_kv_cache_usage_ratio{{{FLEET}}})", BY_SERVICE),),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "p95 time to first token",
                    "By service.",
                    (
                        Query(
                            "histogram_quantile(0.95, sum by (le, namespace, service) "
                            f"(rate(ballast_time_to_first_token_seconds_bucket{{{FLEET}}}[$__rate_interval])))",
                            BY_SERVICE,
                        ),
                    ),
                    unit="s",
                ),
                Panel(
                    "Loaded",
                    "Share of the model that is loaded, of the slowest pod of each service.",
                    (Query(f"min by (namespace, service) (ballast_model_load_progress_ratio{{{FLEET}}})", BY_SERVICE),),
                    unit="percentunit",
                    maximum=1,
                ),
            ),
        ),
        Row(
            "NUMA",
            (
                Panel(
                    "Pinned services",
                    "What the operator found in the running processes: CPUs, memory and GPU on one node.",
                    (
                        Query(
                            f'sum by (status, reason) (ballast_operator_service_condition{{{FLEET},condition="NUMAPinned"}})',
                            "{{status}} {{reason}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Local weights",
                    "Share of the weights on the node of the threads that read them; the worst pod of each service.",
                    (Query(f"min by (namespace, service) (ballast_numa_local_ratio{{{FLEET}}})", BY_SERVICE),),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Memory policy",
                    "1 where the process may set memory policies. 0: the node's seccomp profile forbids it; locality then "
                    "rests on first touch.",
                    (Query(f"min by (namespace, service) (ballast_numa_mempolicy_available{{{FLEET}}})", BY_SERVICE),),
                    maximum=1,
                ),
            ),
        ),
        Row(
            "Operator",
            (
                Panel(
                    "Leading",
                    "Exactly one replica leads. None for longer than a minute: look at the pods' logs.",
                    (Query("sum(ballast_operator_leading)", "leaders"),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Since the last full look",
                    "Seconds. Above 5 minutes: docs/kubernetes/alerts/watch-stale.md.",
                    (Query("time() - max(ballast_operator_last_resync_timestamp_seconds)", "age"),),
                    unit="s",
                    kind="stat",
                    width=6,
                    thresholds=((180, "orange"), (300, "red")),
                ),
                Panel(
                    "Watches stale",
                    "For how long watches have missed changes; 0 is right.",
                    (Query("max(ballast_operator_watch_stale_seconds)", "stale"),),
                    unit="s",
                    kind="stat",
                    width=6,
                    thresholds=((30, "orange"), (120, "red")),
                ),
                Panel(
                    "Known services",
                    "InferenceServices at the last full look.",
                    (Query("max(ballast_operator_services)", "services"),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Passes",
                    "Of the control loop, by result. Errors that go on: kubectl logs of the operator name the object.",
                    (
                        Query(
                            "sum by (result) (rate(ballast_operator_reconciles_total[$__rate_interval]))", "{{result}}"
                        ),
                    ),
                    unit="ops",
                ),
                Panel(
                    "Time of a pass",
                    "95 of 100 passes of the control loop take less.",
                    (Query(OPERATOR_P95, "p95"),),
                    unit="s",
                ),
                Panel(
                    "Services that wait for a pass",
                    "The queue should be empty most of the time.",
                    (Query("sum(ballast_operator_queue_depth)", "waiting"),),
                ),
                Panel(
                    "Requests to the API server",
                    "By status code; 0 is no answer, 403 a permission that is missing (ballast-operator doctor names it).",
                    (Query("sum by (code) (rate(ballast_operator_api_requests_total[$__rate_interval]))", "{{code}}"),),
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Events",
                    "That the watches brought, by kind.",
                    (Query("sum by (kind) (rate(ballast_operator_watch_events_total[$__rate_interval]))", "{{kind}}"),),
                    unit="ops",
                ),
                Panel(
                    "Versions",
                    "Builds of the engine that run, and the instruction set that each chose.",
                    (
                        Query(
                            f"count by (version, isa, device) (ballast_build_info{{{FLEET}}})",
                            "{{version}} {{isa}} {{device}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
    marks(FLEET),
)
