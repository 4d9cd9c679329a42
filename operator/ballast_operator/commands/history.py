"""`ballast-operator history` and `ballast-operator undo`: list earlier specs of a service, and restore one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ballast_operator.cluster.api import Api
from ballast_operator.cluster.kinds import INFERENCE_SERVICE, REVISION
from ballast_operator.control.deciding.revisions import NOT_IN_HISTORY, kept_spec
from ballast_operator.errors import InputError
from ballast_operator.names import ANNOTATION_SPEC_HASH, Ref, pod_selector, selector_text


async def history_lines(api: Api, ref: Ref) -> list[str]:
    """One line per revision, the newest last. Raises ApiError and InputError."""
    service, revisions = await _read(api, ref)
    return list(_lines(service, revisions))


async def undo(api: Api, ref: Ref, number: int | None) -> int:
    """Restore the spec of this revision, or of the one before the current one. Returns its number.

    `replicas` and `rollout` stay as they are. Raises ApiError, with status 409 if the service changed meanwhile, and
    InputError.
    """
    service, revisions = await _read(api, ref)
    present = kept_spec(service["spec"])
    if number is None:
        earlier = [revision for revision in revisions if revision["data"]["spec"] != present]
        if not earlier:
            raise InputError(f"{ref}: there is no earlier revision")
        chosen = earlier[-1]
    else:
        found = [revision for revision in revisions if revision["revision"] == number]
        if not found:
            known = ", ".join(str(revision["revision"]) for revision in revisions) or "none"
            raise InputError(f"{ref}: there is no revision {number}; known: {known}")
        (chosen,) = found
    kept = {name: service["spec"][name] for name in NOT_IN_HISTORY if name in service["spec"]}
    after = await api.replace(INFERENCE_SERVICE, {**service, "spec": {**chosen["data"]["spec"], **kept}})
    if after["metadata"]["generation"] == service["metadata"]["generation"]:
        raise InputError(f"{ref}: revision {chosen['revision']} is the current spec: choose another with --to-revision")
    return int(chosen["revision"])


async def _read(api: Api, ref: Ref) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The service and its revisions, the oldest first."""
    service = await api.get(INFERENCE_SERVICE, ref.namespace, ref.name)
    if service is None:
        raise InputError(f"{ref}: this {INFERENCE_SERVICE.name} does not exist")
    found = await api.list_all(REVISION, ref.namespace, selector_text(pod_selector(ref.name))) or []
    uid = service["metadata"]["uid"]
    owned = [body for body in found if any(it["uid"] == uid for it in body["metadata"].get("ownerReferences") or [])]
    return service, sorted(owned, key=lambda body: int(body["revision"]))


def _lines(service: Mapping[str, Any], revisions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    status = service.get("status") or {}
    failure, present = status.get("lastFailure") or {}, kept_spec(service["spec"])
    yield f"{'REVISION':<10}{'CREATED':<22}{'SPEC HASH':<18}STATE"
    for revision in revisions:
        metadata = revision["metadata"]
        spec_hash = (metadata.get("annotations") or {}).get(ANNOTATION_SPEC_HASH, "")
        words = ["current"] if revision["data"]["spec"] == present else []
        if failure and spec_hash == failure.get("specHash"):
            words.append(f"failed: {failure['reason']}")
        yield (
            f"{revision['revision']:<10}{metadata['creationTimestamp']:<22}{spec_hash:<18}{', '.join(words)}"
        ).rstrip()
