"""Decides the priority of a request, within the range that the server permits."""

from __future__ import annotations

from dataclasses import replace

from ballast.config.whole_range import WholeRange
from ballast.generation.endpoints import Prepared
from ballast.generation.job import Job
from ballast.wire.field_names import client_name
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.parsing import refuse


def granted_priority(requested: int | None, allowed: WholeRange | None) -> int:
    """The priority of a request for `requested`. Without an allowed range, all requests have the same priority.

    Raises RequestError for a priority outside the range.
    """
    if allowed is None:
        return 0
    if requested is not None and requested not in allowed:
        refuse("priority", f"{requested} is outside the range of this client, {allowed}")
    return allowed.nearest(0) if requested is None else requested


def granted(prepared: Prepared, ignored: IgnoredFields, allowed: WholeRange | None, client: int) -> Job:
    """The job with its granted priority, for client number `client`. Adds fields without effect to `ignored`. Raises as
    `granted_priority` does."""
    job = prepared.job
    if job.priority and allowed is None:
        ignored.add("priority")
    for field in job.ineffective:
        ignored.add(client_name(field, prepared.names))
    return replace(job, priority=granted_priority(job.priority, allowed), client=client)
