"""Reconciles one InferenceService. A pass may run at any time, any number of times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ballast_operator.api.inference_service import InferenceService, SpecError
from ballast_operator.backoff import backoff_s
from ballast_operator.child_options import ChildOptions
from ballast_operator.cluster.api import Api, ApiError, NamespaceEndsError
from ballast_operator.cluster.kinds import INFERENCE_SERVICE, NODE, NODE_TOPOLOGY, SERVICE
from ballast_operator.control.applying.cached_pods import replace_waiting
from ballast_operator.control.applying.children import apply_children
from ballast_operator.control.applying.history import record_revision
from ballast_operator.control.applying.outcome import REFUSED, Outcome
from ballast_operator.control.applying.pods import apply_rollout, heal_pods, is_acceptable
from ballast_operator.control.applying.pull import pull_model
from ballast_operator.control.applying.status_writer import StatusWriter
from ballast_operator.control.applying.successor import end_image_check, why_not_startable, why_unplaced
from ballast_operator.control.deciding.live_endpoints import load_balancer_addresses, pods_behind, why_not_behind
from ballast_operator.control.deciding.live_pod import Pod, current_pods, image_in_use
from ballast_operator.control.deciding.lost_node import doubtful_nodes, why_lost
from ballast_operator.control.deciding.numa_capacity import why_no_capacity
from ballast_operator.control.deciding.other_installs import Rivalry, status_managers
from ballast_operator.control.deciding.ownership import conflict
from ballast_operator.control.deciding.pull import next_look_s
from ballast_operator.control.deciding.rollout import Rollout, next_attempt, plan_rollout
from ballast_operator.control.observing.cached_model import with_cached_model
from ballast_operator.control.observing.installs import Installs
from ballast_operator.control.observing.observe import Observed, observe, observe_pods
from ballast_operator.control.observing.pod_reports import gather_reports, reach_service
from ballast_operator.control.observing.probe import Prober
from ballast_operator.control.reporting.conditions import Finding
from ballast_operator.control.reporting.evidence import Evidence, PodReport
from ballast_operator.control.reporting.findings import find_available, spec_refused
from ballast_operator.control.reporting.progress_findings import attempt_failed, was_reported_as_failed
from ballast_operator.control.reporting.status import build_status, refused_status, yielded_status
from ballast_operator.control.state import OperatorState, ServiceState, version_of
from ballast_operator.desired import desired_children, kinds_missing
from ballast_operator.limits.refusals import why_not_allowed
from ballast_operator.names import LABEL_OWNER_UID, Ref, labels_of
from ballast_operator.resources.pod import Attempt, build_pod, restart_of
from ballast_operator.spec_hash import spec_hash

log = logging.getLogger(__name__)

STEADY_S = 300.0
"""Seconds between passes over a service that does not change: pinning may be lost without an event."""
LOADING_S = 5.0
REFUSED_S = 30.0
FIRST_REACH_S = 1.0
"""First delay until an unreachable Service is checked again; it doubles. Nodes learn of ready pods with a delay."""
UNSURE_S = 15.0
MAX_READ_AGE_S = 10.0
"""No pod of an earlier spec is stopped because of data that is older than this."""
GARBAGE_COLLECTION = ("foregroundDeletion", "orphan")
"""Finalizers of the garbage collector."""
UNSURE = ("Ready",)
"""Conditions that may become true without an event."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Runs passes of the control loop."""

    api: Api
    prober: Prober
    options: ChildOptions
    state: OperatorState
    installs: Installs
    statuses: StatusWriter
    now: Callable[[], datetime]
    clock: Callable[[], float]

    async def reconcile(self, ref: Ref) -> float | None:
        """Run one pass. Returns the seconds until the next pass if no event comes before.

        Raises ApiError for temporary failures: immediately if the pods cannot be read, otherwise after all other work.
        """
        body = await self.api.get(INFERENCE_SERVICE, ref.namespace, ref.name)
        if body is None:
            self.state.forget(ref)  # the garbage collector does the rest
            return None
        if self.state.of(ref).abandoned_uid == body["metadata"]["uid"]:
            return None
        try:
            if "deletionTimestamp" in body["metadata"]:
                await self._leave_to_garbage_collector(ref, body)
                return None
            return await self._reconcile_existing(ref, body)
        except NamespaceEndsError:
            log.info("the namespace is being deleted or is gone, nothing more is written", extra={"service": str(ref)})
            self.state.of(ref).abandoned_uid = body["metadata"]["uid"]
            return None

    async def _reconcile_existing(self, ref: Ref, body: dict[str, Any]) -> float | None:
        """The pass over a service that exists. Raises ApiError as `reconcile` does."""
        rivalry = await self.installs.look(body)
        if not rivalry.acts:
            await self._yield(body, rivalry)
            return UNSURE_S
        try:
            service = InferenceService.from_api(body)
        except SpecError as error:
            await self._refuse(body, rivalry, "SpecInvalid", str(error))
            return None
        if (refusal := why_not_allowed(service.spec, self.options.allowed)) is not None:
            await self._refuse(body, rivalry, "NotAllowed", refusal)
            return None
        began = self.clock()
        seen = await observe(self.api, service, self.state.child_kinds())
        seen = replace(seen, read_at=began, status=body.get("status") or {})
        if seen.misses_owner(service) and not await self._still_exists(service):
            return 0.0
        outcome = Outcome()
        await record_revision(self.api, service, body["spec"], self.state.of(service.ref), outcome)
        evidence = replace(await self._act(service, seen, outcome), rivals=rivalry.message)
        evidence = self._with_progress(service, evidence, body.get("status") or {})
        status = build_status(service, evidence, body.get("status") or {}, self.now()).to_api()
        version = await self._write_status(body, status, rivalry.gone)
        self._remember(service, seen, version, evidence)
        if outcome.errors:
            raise max(outcome.errors, key=lambda error: error.retry_after_s or 0.0)
        return _next_look(service, evidence, status, self.state.of(ref), self.clock())

    async def _still_exists(self, service: InferenceService) -> bool:
        """Whether the service exists and is not being deleted now.

        `kubectl delete --cascade=orphan` removes the owner of the remaining objects. A pass that read the service
        before would restore the owner, and the garbage collector would delete the pod.
        """
        body = await self.api.get(INFERENCE_SERVICE, service.ref.namespace, service.ref.name)
        return (
            body is not None and body["metadata"]["uid"] == service.uid and "deletionTimestamp" not in body["metadata"]
        )

    def _with_progress(self, service: InferenceService, evidence: Evidence, before: Mapping[str, Any]) -> Evidence:
        """The evidence with the time without progress. A restarted operator starts at zero."""
        clock, current = self.state.of(service.ref).progress, current_pods(service, evidence.pods)
        if clock.target is None:
            clock.failed = was_reported_as_failed(before, service.generation)
        pulled = evidence.pulled is None or evidence.pulled.holds
        spec = service.spec
        target = (spec_hash(spec), restart_of(service), spec.replicas, spec.rollout.paused, pulled)
        num_ready = sum(pod.ready for pod in current.values())
        is_pulling = not pulled and evidence.pulled is not None and not evidence.pulled.is_fault
        idle_s = clock.idle_s(target, num_ready, spec.replicas, self.clock(), is_pulling=is_pulling)
        return replace(evidence, idle_s=idle_s, failed=clock.failed)

    async def _leave_to_garbage_collector(self, ref: Ref, body: dict[str, Any]) -> None:
        """Leave a service that is being deleted to the garbage collector, and report foreign finalizers."""
        held = [name for name in body["metadata"].get("finalizers") or () if name not in GARBAGE_COLLECTION]
        rivalry = await self.installs.look(body)
        if held and rivalry.acts:
            message = f"it is being deleted and waits for {', '.join(held)}; its objects are no longer repaired"
            await self._refuse(body, rivalry, "Terminating", message)
        self.state.forget(ref)

    async def _refuse(self, body: dict[str, Any], rivalry: Rivalry, reason: str, message: str) -> None:
        """Report why the operator does not act on the spec. Pods of an earlier spec stay as they are."""
        metadata, before = body["metadata"], body.get("status") or {}
        pods, behind = await observe_pods(self.api, Ref(metadata["namespace"], metadata["name"]), metadata["uid"])
        refused = spec_refused(reason, message, find_available(pods, behind, None, None), rivalry.message)
        status = refused_status(refused, pods, metadata["generation"], before, self.now())
        await self._write_status(body, status, rivalry.gone)

    async def _yield(self, body: dict[str, Any], rivalry: Rivalry) -> None:
        """Leave the service to the install that acts on it, and report this under our own field manager, which the
        other install sees."""
        assert rivalry.message is not None
        metadata, before = body["metadata"], body.get("status") or {}
        status = yielded_status(rivalry.message, metadata["generation"], before, self.now())
        self.state.of(Ref(metadata["namespace"], metadata["name"])).conditions = status["conditions"]
        known = before.get("conditions") or []
        seen = str(self.installs.own) in status_managers(body)
        if not seen or any(condition not in known for condition in status["conditions"]):
            await self.statuses.apply(INFERENCE_SERVICE, body, status)

    async def _act(self, service: InferenceService, seen: Observed, outcome: Outcome) -> Evidence:
        """Apply the children and the next step of the rollout, then gather the evidence for the status.

        Raises ApiError where the Service cannot be read for now.
        """
        state = self.state.of(service.ref)
        known = {kind.name for kind in self.state.known}
        desired = desired_children(service, self.options, known)
        outcome.delays += kinds_missing(service, known)
        await apply_children(self.api, service, desired, seen, outcome)
        pulled = await pull_model(self.api, self.prober, service, self.options, outcome)
        if pulled is None:
            service, pulled = await with_cached_model(self.api, service, self.options.allowed)
            outcome.holds_pods |= pulled is not None and not pulled.holds
            await replace_waiting(self.api, service, seen.pods, outcome)
        rollout, no_capacity, held = await self._roll_out(service, seen, outcome)
        current = [pod for _, pod in sorted(current_pods(service, seen.pods).items())]
        reports = await gather_reports(self.prober, service, current, state, self.clock)
        unserved = failure = None
        if current and all(pod.ready for pod in current):
            unserved, failure = await self._why_unreachable(service, seen, current)
        else:
            state.reached, state.unreached = None, 0
        return Evidence(
            pods=seen.pods,
            rollout=rollout,
            reports=reports,
            conflicts=tuple(outcome.conflicts),
            refusals=tuple(outcome.refusals),
            delays=tuple(outcome.delays),
            behind=None if isinstance(seen.slices, ApiError) else pods_behind(seen.slices),
            unserved=unserved,
            service_failure=failure,
            addresses=load_balancer_addresses(seen.children.get((SERVICE, service.ref.name))),
            lost_nodes=await self._lost_nodes(service, seen, reports),
            no_capacity=no_capacity,
            unplaced=await why_unplaced(self.api, service, current, state, self.state.nodes_changed),
            held=held,
            pulled=pulled,
        )

    async def _lost_nodes(
        self, service: InferenceService, seen: Observed, reports: Mapping[str, PodReport]
    ) -> dict[str, str]:
        """Name → fault of nodes whose pods terminate or do not answer; empty if nodes may not be read."""
        loading = frozenset(uid for uid, report in reports.items() if report.progress is not None)
        found = {}
        for name in doubtful_nodes(seen.pods, loading):
            try:
                why = why_lost(name, await self.api.get(NODE, None, name))
            except ApiError as error:  # the pods' own state is still reported
                log.warning("a node cannot be read", extra={"service": str(service.ref), "error": str(error)})
                continue
            if why is not None:
                found[name] = why
        return found

    async def _why_unreachable(
        self, service: InferenceService, seen: Observed, current: Sequence[Pod]
    ) -> tuple[str | None, str | None]:
        """The pods that are no endpoints of the Service, and why nothing answers through it; None if all is well.

        Raises ApiError where that cannot be found out for now.
        """
        state = self.state.of(service.ref)
        unread = seen.unread.get((SERVICE, service.ref.name))
        if unread is None and isinstance(seen.slices, ApiError):
            unread = seen.slices
        if unread is not None:
            if unread.status not in REFUSED:
                raise unread
            state.reached = None
            return None, f"the Service or its endpoints cannot be read: {unread.message}"
        assert not isinstance(seen.slices, ApiError)
        behind = pods_behind(seen.slices)
        if (unserved := why_not_behind(current, behind)) is not None:
            state.reached = None
            return unserved, None
        live = seen.children.get((SERVICE, service.ref.name))
        return None, await reach_service(self.prober, live, service.spec.endpoint.port, current, behind, state)

    async def _roll_out(
        self, service: InferenceService, seen: Observed, outcome: Outcome
    ) -> tuple[Rollout, str | None, Finding | None]:
        spec, clock = service.spec, self.clock()
        rollout = plan_rollout(
            spec.replicas,
            spec_hash(spec),
            seen.pods,
            self.state.observation(service.ref, seen.pods, clock),
            spec.rollout,
            earlier_owner_pods=seen.earlier_owner_pods,
            foreign_pods=seen.foreign_pods,
        )
        image = image_in_use(service, seen.pods)
        options = self.options if image is None else self.options.with_image(image)
        build = lambda attempt: build_pod(service, options, attempt)  # noqa: E731
        if outcome.conflicts or outcome.holds_pods:  # pods would hold memory and not be reachable
            surplus = tuple(pod for pod in rollout.stop if pod.replica >= spec.replicas)
            await apply_rollout(self.api, service, replace(rollout, start=(), stop=surplus), build, outcome)
            return rollout, None, None
        no_capacity = await self._why_no_capacity(service) if rollout.start else None
        hold = no_capacity is not None and spec.numa.enforcement == "Require"
        stop, held = await self._stoppable(service, seen, rollout, build, outcome)
        steps = replace(rollout, start=() if hold else rollout.start, stop=stop)
        await apply_rollout(self.api, service, steps, build, outcome)
        outcome.conflicts += [conflict(pod.body, service) for pod in rollout.foreign_pods]
        staying = [pod for pod in current_pods(service, seen.pods).values() if pod not in steps.stop]
        await heal_pods(self.api, staying, build, outcome)
        return rollout, no_capacity, held

    async def _stoppable(
        self,
        service: InferenceService,
        seen: Observed,
        rollout: Rollout,
        build: Callable[[Attempt], dict[str, Any]],
        outcome: Outcome,
    ) -> tuple[tuple[Pod, ...], Finding | None]:
        """The pods to stop, and why those of an earlier spec are not among them where they are held.

        One of an earlier spec is stopped only if the pod that follows it would be accepted. One that served is stopped
        only if that pod could also start, if no engine of the spec has failed before the service was scaled down, and
        if the state of the pods was read just now.
        """
        state = self.state.of(service.ref)
        replaced = [pod for pod in rollout.stop if pod in rollout.outdated]
        serving = [pod for pod in replaced if pod.has_served]
        others = tuple(pod for pod in rollout.stop if pod not in replaced)
        if replaced:
            successor = build(next_attempt(replaced[0].replica, seen.pods))
            if not await is_acceptable(self.api, service, replaced[0], successor, outcome):
                return others, None
        idle = tuple(pod for pod in rollout.stop if pod not in serving)
        if serving:
            why = attempt_failed(service, seen.pods, seen.status)
            if why is not None:
                await end_image_check(self.api, service, state, outcome)
            else:
                why = await why_not_startable(self.api, service, successor, seen.pods, state, outcome)
            if why is not None:
                names = ", ".join(pod.name for pod in serving)
                return idle, replace(
                    why, message=f"{why.message}; {names} of the earlier spec stays until this is done"
                )
        if serving and (age_s := self.clock() - seen.read_at) > MAX_READ_AGE_S:
            log.warning("the pods were read too long ago", extra={"service": str(service.ref), "age_s": round(age_s)})
            self.state.disturbed = self.clock()
            return idle, None
        await end_image_check(self.api, service, state, outcome)
        return rollout.stop, None

    async def _why_no_capacity(self, service: InferenceService) -> str | None:
        if NODE_TOPOLOGY not in self.state.known or service.spec.numa.enforcement == "Off":
            return None
        try:
            topologies, nodes = await self.api.list_all(NODE_TOPOLOGY), await self.api.list_all(NODE)
        except ApiError as error:  # not known; the kubelet decides anyway
            log.warning("free capacity of nodes is not known", extra={"service": str(service.ref), "error": str(error)})
            return None
        return why_no_capacity(service.spec, topologies or [], nodes or [])

    async def _write_status(self, body: dict[str, Any], status: dict[str, Any], gone: Sequence[str]) -> str:
        """Write the status, as StatusWriter.write does, and keep its conditions."""
        metadata = body["metadata"]
        self.state.of(Ref(metadata["namespace"], metadata["name"])).conditions = status["conditions"]
        return await self.statuses.write(INFERENCE_SERVICE, body, status, gone)

    def _remember(self, service: InferenceService, seen: Observed, version: str, evidence: Evidence) -> None:
        state = self.state.of(service.ref)
        slices = () if isinstance(seen.slices, ApiError) else seen.slices
        ours = [body for body in slices if labels_of(body).get(LABEL_OWNER_UID) == service.uid]
        bodies = [*seen.children.values(), *(pod.body for pod in seen.pods), *ours]
        state.versions = {**dict(version_of(body) for body in bodies), service.uid: version}
        state.progress.failed = was_reported_as_failed({"conditions": state.conditions}, service.generation)
        state.refused = any(
            waits is not None for waits in (evidence.rollout.retry_in_s, evidence.no_capacity, evidence.held)
        )
        pulls = evidence.pulled is not None and not evidence.pulled.holds
        since = self.clock() if state.pulling_since is None else state.pulling_since
        state.pulling_since = since if pulls else None


def _next_look(
    service: InferenceService, evidence: Evidence, status: dict[str, Any], state: ServiceState, now: float
) -> float:
    if evidence.conflicts or evidence.refusals or evidence.no_capacity or evidence.held:
        return REFUSED_S
    current = current_pods(service, evidence.pods).values()
    waits = [REFUSED_S if evidence.delays else STEADY_S]
    if state.pulling_since is not None:
        waits.append(next_look_s(now - state.pulling_since))
    if evidence.rivals is not None:
        waits.append(UNSURE_S)  # they may be gone
    if evidence.rollout.retry_in_s is not None:
        waits.append(evidence.rollout.retry_in_s)
    if evidence.rollout.settles_in_s is not None:
        waits.append(evidence.rollout.settles_in_s)
    if evidence.unserved is not None:
        waits.append(UNSURE_S)  # the endpoints are watched
    elif evidence.service_failure is not None:
        waits.append(backoff_s(FIRST_REACH_S, REFUSED_S, state.unreached - 1))
    elif any(pod.running and not pod.ready for pod in current):
        waits.append(LOADING_S)
    elif not all(finding["status"] == "True" for finding in status["conditions"] if finding["type"] in UNSURE):
        waits.append(UNSURE_S)
    return min(waits)
