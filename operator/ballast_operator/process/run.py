"""`ballast-operator run`: waits for leadership, then watches, reconciles and resyncs at an interval."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ballast_operator.child_options import ChildOptions
from ballast_operator.cluster.api import ApiError
from ballast_operator.cluster.kinds import INFERENCE_SERVICE, MODEL_CACHE, Kind
from ballast_operator.control.applying.limited_api import LimitedApi
from ballast_operator.control.applying.status_writer import StatusWriter
from ballast_operator.control.observing.freshness import Freshness
from ballast_operator.control.observing.installs import Installs
from ballast_operator.control.observing.probe import Prober
from ballast_operator.control.reconcile import Reconciler
from ballast_operator.control.reconcile_cache import CacheReconciler
from ballast_operator.control.resync import Resync, ref_of
from ballast_operator.control.state import OperatorState
from ballast_operator.control.workqueue import WorkQueue
from ballast_operator.errors import InputError
from ballast_operator.names import Ref
from ballast_operator.process.event_targets import CacheUsers, service_of
from ballast_operator.process.health import HealthServer
from ballast_operator.process.leader import Election
from ballast_operator.process.metrics import Metrics
from ballast_operator.process.process_options import ProcessOptions
from ballast_operator.process.traces import Traces
from ballast_operator.process.watcher import Watcher

log = logging.getLogger(__name__)

NUM_WORKERS = 8
NUM_CACHE_WORKERS = 2
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 10.0
"""Maximum delay between attempts to resync, and so until the recovery of an API server is noticed."""
LOOK_AT_KINDS_S = 3.0
"""Maximum wait of a readiness probe for the API server; shorter than the probe's own timeout."""
MAX_STALE_S = 300.0
"""If watches miss changes for longer than this, although they were restarted, the process must restart."""
MAX_SILENCE_S = 300.0
"""The process must also restart if the control loop has listed nothing for this long after its next resync was due."""


class LostLeadershipError(Exception):
    """This replica's lease has expired; another may lead now."""


class Operator:
    """One replica of the operator: everything it runs, and how the parts are connected."""

    def __init__(self, children: ChildOptions, process: ProcessOptions) -> None:
        self._options = process
        self._loop = asyncio.get_running_loop()
        self._state = OperatorState()
        self._metrics = Metrics(self._state)
        self._traces = Traces(process.otlp_endpoint, process.otlp_service_name, process.identity)
        self._api = LimitedApi(process.quotas, self._requested)
        self._prober = Prober(process.probe_proxy)
        self._freshness = Freshness()
        self._cache_users = CacheUsers()
        self._installs = installs = Installs(
            self._api, Ref(process.lease_namespace, process.lease_name), time.monotonic
        )
        statuses = StatusWriter(self._api, self._state, str(installs.own), _now)
        self._reconciler = Reconciler(
            self._api, self._prober, children, self._state, installs, statuses, _now, time.monotonic
        )
        self._queue: WorkQueue[Ref] = WorkQueue(
            self._reconcile,
            num_workers=NUM_WORKERS,
            random=random.random,
            clock=time.monotonic,
            on_done=self._metrics.reconciled,
        )
        self._caches: WorkQueue[Ref] = WorkQueue(
            self._reconcile_cache,
            num_workers=NUM_CACHE_WORKERS,
            random=random.random,
            clock=time.monotonic,
            on_done=self._metrics.reconciled,
        )
        self._cache_reconciler = CacheReconciler(
            self._api, self._prober, children, installs, statuses, _now, time.monotonic
        )
        self._resync = Resync(
            self._api,
            self._state,
            self._freshness,
            self._queue.enqueue,
            time.monotonic,
            process.namespaces or (None,),
            self._mark_alive,
        )
        self._watcher = Watcher(self._on_event, self._state.watched_kinds, process.namespaces or (None,))
        self._election = Election(
            self._api,
            process.lease_namespace,
            process.lease_name,
            process.identity,
            uuid.uuid4().hex,
            time.monotonic,
            _now,
            process.namespaces,
        )
        self._last_alive: float | None = None
        self._metrics.queue_depth.set_function(lambda: self._queue.depth)
        self._metrics.watch_stale_seconds.set_function(lambda: self._freshness.stale_s(time.monotonic()))

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises ConnectError and InputError."""
        await self._api.connect()
        health = HealthServer(
            self._metrics, self.why_dead, self.why_unready, self._options.health_host, self._options.health_port
        )
        try:
            port = await health.start()
        except OSError as error:
            raise InputError(
                f"--health-port {self._options.health_port} of {self._options.health_host}: {error}; 0 uses a free port"
            ) from None
        log.info("listening", extra={"host": self._options.health_host, "port": port})
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, stopping.set)
        working = asyncio.create_task(self._work())
        stop = asyncio.create_task(stopping.wait())
        tracing = asyncio.create_task(self._traces.run())
        await asyncio.wait((working, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        await self._leave()
        tracing.cancel()
        await asyncio.wait((tracing,))
        await health.stop()

    def why_dead(self) -> str | None:
        """The reason to restart the process; None if there is none. An unreachable API server is no reason."""
        now = time.monotonic()
        if (stale_s := self._freshness.stale_s(now)) > MAX_STALE_S:
            return f"the watches have missed changes for {stale_s:.0f} s"
        if self._last_alive is not None and now - self._last_alive > self._options.resync_s + MAX_SILENCE_S:
            return f"the control loop has made no progress for {now - self._last_alive:.0f} s"
        return None

    async def why_unready(self) -> str | None:
        """Why this replica cannot act on services; None if it can. An unreachable API server is no reason."""
        try:
            async with asyncio.timeout(LOOK_AT_KINDS_S):
                known = await self._api.knows(INFERENCE_SERVICE)
        except (ApiError, TimeoutError):
            return None
        name = f"{INFERENCE_SERVICE.plural}.{INFERENCE_SERVICE.group}"
        return None if known else f"the CustomResourceDefinition {name} is not installed"

    async def _leave(self) -> None:
        with contextlib.suppress(ApiError, TimeoutError):  # the lease expires by itself
            async with asyncio.timeout(FIRST_RETRY_S * 3):
                await self._election.release()
        await self._prober.close()
        await self._api.close()

    async def _work(self) -> None:
        while True:
            since = await self._election.acquire()
            self._installs.begin()
            self._metrics.leading.set(1)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._lead(since))
                    tasks.create_task(self._queue.run())
                    tasks.create_task(self._caches.run())
                    tasks.create_task(self._look())
            except* LostLeadershipError:
                log.info("waiting for leadership again")
            finally:
                self._metrics.leading.set(0)
                self._state.services.clear()  # it becomes stale when another replica leads
                self._last_alive = None
                self._freshness.begin()
                await self._watcher.stop()

    async def _lead(self, since: float) -> None:
        await self._election.hold(since)
        raise LostLeadershipError

    async def _look(self) -> None:
        """Resync at an interval. The first resync runs before the watches start: it finds the existing kinds."""
        watching, retry_s = False, FIRST_RETRY_S
        self._freshness.begin()
        self._cache_users.clear()
        while True:
            self._mark_alive()
            kinds = self._state.watched_kinds()
            try:
                with self._traces.span("resync", {}):
                    self._metrics.services.set(await self._resync.run_once())
                    await self._look_at_caches()
            except Exception as error:  # noqa: BLE001  any malformed answer; the next resync may succeed
                log.warning("the resync failed", extra={"error": repr(error), "again_in_s": retry_s})
                await asyncio.sleep(retry_s)
                retry_s = min(MAX_RETRY_S, 2 * retry_s)
                continue
            self._metrics.last_resync.set_to_current_time()
            retry_s = FIRST_RETRY_S
            if not watching:
                self._watcher.start()
                watching = True
            elif self._freshness.stale_s(time.monotonic()) or kinds != self._state.watched_kinds():
                log.warning("restarting the watches")
                self._watcher.restart()
            await asyncio.sleep(self._options.resync_s)

    async def _reconcile(self, ref: Ref) -> float | None:
        with self._traces.span("reconcile", {"k8s.namespace.name": ref.namespace, "ballast.service": ref.name}):
            return await self._reconciler.reconcile(ref)

    async def _look_at_caches(self) -> None:
        """Enqueue every ModelCache: its nodes, its services and its Jobs may have changed. Raises ApiError."""
        if MODEL_CACHE in self._state.known:
            for namespace in self._options.namespaces or (None,):
                try:
                    found = await self._api.list_all(MODEL_CACHE, namespace) or ()
                except ApiError as error:
                    if error.status != 403:
                        raise
                    log.warning("may not be listed", extra={"kind": MODEL_CACHE.name, "error": str(error)})
                    continue
                self._mark_alive()
                for body in found:
                    self._caches.enqueue(ref_of(body))

    async def _reconcile_cache(self, ref: Ref) -> float | None:
        with self._traces.span("reconcile_cache", {"k8s.namespace.name": ref.namespace, "ballast.cache": ref.name}):
            return await self._cache_reconciler.reconcile(ref)

    def _requested(self, verb: str, code: int, seconds: float) -> None:
        self._metrics.requested(verb, code)
        self._state.note_answer(verb, code, seconds, time.monotonic())
        self._traces.requested()

    def _mark_alive(self) -> None:
        self._last_alive = time.monotonic()

    def _on_event(self, kind: Kind, body: Mapping[str, Any], gone: bool) -> None:
        """Pass an event from the watches' thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._handle_event, kind, body, gone)

    def _handle_event(self, kind: Kind, body: Mapping[str, Any], gone: bool) -> None:
        self._metrics.watched(kind.name)
        for cache in self._cache_users.caches_of(kind, body, gone=gone):
            self._caches.enqueue(cache)
        if kind == MODEL_CACHE:
            return
        self._freshness.watched(body, gone=gone)
        if (ref := service_of(kind, body)) is not None:
            self._queue.enqueue(ref)


def _now() -> datetime:
    return datetime.now(UTC)


async def run_operator(children: ChildOptions, process: ProcessOptions) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    await Operator(children, process).run()
