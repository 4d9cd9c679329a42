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
                    "Number of ready services, and of all services. The table has the reasons of the others.",
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
                    "Number of services that are not ready. The table has their names and reasons.",
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
                    "Share of finished requests that failed or timed out, of all services. Rejected requests and clients that "
                    "disconnected do not count.",
                    (Query(ERRORS.format(by=""), "errors"),),
                    unit="percentunit",
                    kind="stat",
                    width=6,
                    thresholds=((0.001, "orange"), (0.01, "red")),
                    maximum=1,
                ),
                Panel(
                    "Alerts",
                    "Alerts of Ballast that are firing; docs/kubernetes/monitoring.md lists their pages.",
                    (Query('count(ALERTS{alertname=~"Ballast.+",alertstate="firing"}) or vector(0)', "firing"),),
                    kind="stat",
                    width=6,
                    thresholds=((1, "red"),),
                ),
                Panel(
                    "Conditions",
                    "Conditions of each service with their reasons; false ones come first. "
                    "docs/kubernetes/troubleshooting.md explains the reasons. A service's name links to its dashboard.",
                    (Query(f'ballast_operator_service_condition{{{FLEET},condition!="Progressing"}}'),),
                    kind="table",
                    width=24,
                    columns=("namespace", "service", "condition", "status", "reason"),
                ),
                Panel(
                    "Error ratio",
                    "Share of finished requests that failed or timed out, by service. Check the pod's log.",
                    (Query(ERRORS.format(by=" by (namespace, service)"), BY_SERVICE),),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Tokens per second",
                    "Generated tokens per second, by service.",
                    (Query(rate("ballast_generation_tokens_total", "namespace, service", FLEET), BY_SERVICE),),
                    stacked=True,
                ),
                Panel(
                    "Batch occupancy",
                    "By service. If it is always low, fewer replicas are enough.",
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
                    "By service. If a queue grows: docs/kubernetes/alerts/queue-growing.md.",
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
                    "Whether CPUs, memory and GPU of the running processes are on one node.",
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
                    "Share of the weights that are on the node of the threads that read them, for the worst pod of each service.",
                    (Query(f"min by (namespace, service) (ballast_numa_local_ratio{{{FLEET}}})", BY_SERVICE),),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Memory policy",
                    "1 if the process may set memory policies. 0: the node's seccomp profile forbids it; locality then depends on "
                    "first touch.",
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
                    "Number of leaders; it must be 1. If it is 0 for longer than a minute, check the pods' logs.",
                    (Query("sum(ballast_operator_leading)", "leaders"),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Since the last resync",
                    "Seconds. Above 5 minutes: docs/kubernetes/alerts/watch-stale.md.",
                    (Query("time() - max(ballast_operator_last_resync_timestamp_seconds)", "age"),),
                    unit="s",
                    kind="stat",
                    width=6,
                    thresholds=((180, "orange"), (300, "red")),
                ),
                Panel(
                    "Watches stale",
                    "Seconds for which the watches have missed changes; it must be 0.",
                    (Query("max(ballast_operator_watch_stale_seconds)", "stale"),),
                    unit="s",
                    kind="stat",
                    width=6,
                    thresholds=((30, "orange"), (120, "red")),
                ),
                Panel(
                    "Known services",
                    "InferenceServices at the last resync.",
                    (Query("max(ballast_operator_services)", "services"),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Passes",
                    "Passes of the control loop, by result. If errors last, the operator's log has the object.",
                    (
                        Query(
                            "sum by (result) (rate(ballast_operator_reconciles_total[$__rate_interval]))", "{{result}}"
                        ),
                    ),
                    unit="ops",
                ),
                Panel(
                    "Time of a pass",
                    "95 % of the passes of the control loop are shorter.",
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
                    "By status code. 0: no answer. 403: a missing permission, which ballast-operator doctor lists.",
                    (Query("sum by (code) (rate(ballast_operator_api_requests_total[$__rate_interval]))", "{{code}}"),),
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Events",
                    "Events that the watches delivered, by kind.",
                    (Query("sum by (kind) (rate(ballast_operator_watch_events_total[$__rate_interval]))", "{{kind}}"),),
                    unit="ops",
                ),
                Panel(
                    "Versions",
                    "Versions of the running engines, with their instruction set and device.",
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
