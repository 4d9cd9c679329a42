"""A fake API server with a few objects and configurable failures, and pods that answer."""

import copy
from datetime import timedelta

from builders import NOW, UID

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.child_options import ChildOptions
from ballast_operator.cluster.api import ApiError
from ballast_operator.cluster.kinds import INFERENCE_SERVICE, OPTIONAL_KINDS
from ballast_operator.control.applying.status_writer import StatusWriter
from ballast_operator.control.deciding.drift import stamped
from ballast_operator.control.deciding.revisions import plan_history
from ballast_operator.control.observing.installs import Installs
from ballast_operator.control.reconcile import Reconciler
from ballast_operator.control.state import OperatorState
from ballast_operator.desired import desired_children
from ballast_operator.names import ANNOTATION_SERVED, LABEL_OF_SLICES, Ref
from ballast_operator.resources.pod import Attempt, build_pod

OPTIONS = ChildOptions()
REF = Ref("ns", "s")
"""The custom resource that custom_resource() makes."""


def custom_resource(**spec):
    resources = {"cpus": 2, "memory": "1Gi", "gpus": 0}
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.name,
        "metadata": {"name": "s", "namespace": "ns", "uid": UID, "generation": 1, "resourceVersion": "1"},
        "spec": {"model": {"source": {"builtin": {}}}, "resources": resources, **spec},
    }


def live(body, **more):
    """The object as the API server stores it."""
    uid = f"{body['kind']}-{body['metadata']['name']}"
    since = (NOW - timedelta(minutes=5)).isoformat()
    metadata = {**body["metadata"], "uid": uid, "resourceVersion": "1", "creationTimestamp": since}
    return {**copy.deepcopy(body), "metadata": metadata, **more}


class FakeApi:
    """`failures`: the HTTP status or the exception, by verb and kind."""

    def __init__(self, service, failures=None):
        self.objects, self.failures, self.writes = {}, failures or {}, []
        self.schemas_by_kind = {}
        self.put(service)

    def put(self, body):
        self.objects[body["kind"], body["metadata"]["name"]] = body

    def add_children(self):
        service = InferenceService.from_api(self.objects["InferenceService", "s"])
        for child in desired_children(service, OPTIONS):
            self.put(live(stamped(child)))
        self.objects["Service", "s"]["spec"]["clusterIP"] = "10.96.0.1"
        spec = self.objects["InferenceService", "s"]["spec"]
        self.put(live(plan_history(service, spec, []).create))

    def add_pod(self, *, ready):
        service = InferenceService.from_api(self.objects["InferenceService", "s"])
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        body = live(build_pod(service, OPTIONS, Attempt(0)), status={"phase": "Running", "conditions": [condition]})
        body["spec"]["nodeName"] = "n1"
        if ready:
            body["metadata"]["annotations"][ANNOTATION_SERVED] = "true"
        self.put(body)
        behind = {"targetRef": {"kind": "Pod", "uid": body["metadata"]["uid"]}, "conditions": {"ready": True}}
        labels = {LABEL_OF_SLICES: "s", **body["metadata"]["labels"]}
        self.put(live({"kind": "EndpointSlice", "metadata": {"name": "s-1", "labels": labels}, "endpoints": [behind]}))
        return body

    def _fail(self, verb, kind):
        if (failure := self.failures.get((verb, kind.name))) is not None:
            raise (
                failure if isinstance(failure, ApiError) else ApiError(f"{verb} {kind.plural}", failure, "told to fail")
            )

    def written(self, verb, kind):
        return [body for done, name, body in self.writes if (done, name) == (verb, kind)]

    @property
    def status(self):
        return self.objects["InferenceService", "s"].get("status") or {}

    @property
    def conditions(self):
        return {c["type"]: (c["status"], c["reason"]) for c in self.status.get("conditions", [])}

    async def get(self, kind, namespace, name):
        self._fail("get", kind)
        return copy.deepcopy(self.objects.get((kind.name, name)))

    async def list_all(self, kind, namespace=None, selector=""):
        self._fail("list", kind)
        want = dict(term.split("=") for term in selector.split(",")) if selector else {}
        found = [body for (name, _), body in self.objects.items() if name == kind.name]
        return [copy.deepcopy(body) for body in found if want.items() <= body["metadata"].get("labels", {}).items()]

    async def knows(self, kind):
        return kind.name == "PodMonitor"

    async def schemas(self, api_version):
        if (status := self.failures.get(("discover", "schemas"))) is not None:
            raise ApiError("discover /openapi/v3", status, "told to fail")
        return self.schemas_by_kind

    async def apply(self, kind, body, subresource=None, manager=None):
        self._fail("apply", kind)
        self.writes.append(("apply", kind.name, body))
        if subresource is not None:
            self.objects[kind.name, body["metadata"]["name"]][subresource] = body[subresource]
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "2"}}

    async def create(self, kind, body, namespace=None):
        self._fail("create", kind)
        self.writes.append(("create", kind.name, body))
        return body

    async def try_create(self, kind, body, namespace=None):
        self._fail("try", kind)

    async def merge(self, kind, namespace, name, body):
        self._fail("merge", kind)
        self.writes.append(("merge", kind.name, body))

    async def delete(self, kind, body, propagation=None, *, unchanged=False):
        self._fail("delete", kind)
        self.writes.append(("delete", kind.name, body))


class FakeProber:
    """Pods and Services that are ready and report nothing else; records which Services were probed."""

    def __init__(self):
        self.through_service = []

    async def readiness(self, host, port=None):
        if port is not None:
            self.through_service.append(host)
        return True, {}


def reconciler(api, prober=None, *, known=OPTIONAL_KINDS):
    state, installs = OperatorState(known=frozenset(known)), Installs(api, Ref("system", "operator"), lambda: 0.0)
    return Reconciler(
        api, prober or FakeProber(), OPTIONS, state, installs, writer(api, state), lambda: NOW, lambda: 0.0
    )


def writer(api, state=None):
    return StatusWriter(api, state or OperatorState(), "system/operator", lambda: NOW)
