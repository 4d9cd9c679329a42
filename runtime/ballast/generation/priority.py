"""Which priority a request gets: clients may request one only as far as the server permits it."""

from __future__ import annotations

from dataclasses import replace

from ballast.config.whole_range import WholeRange
from ballast.generation.endpoints import Prepared
from ballast.generation.job import Job
from ballast.wire.field_names import client_name
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.parsing import refuse


def granted_priority(requested: int | None, allowed: WholeRange | None) -> int:
    """The priority of a request that names `requested`. Without an allowed range all requests are equal.

    Raises RequestError for a priority outside of the range.
    """
    if allowed is None:
        return 0
    if requested is not None and requested not in allowed:
        refuse("priority", f"{requested} is not among those that this client may ask for, which are {allowed}")
    return allowed.nearest(0) if requested is None else requested


def granted(prepared: Prepared, ignored: IgnoredFields, allowed: WholeRange | None, client: int) -> Job:
    """The job with the priority that it gets, of client number `client`. Notes in `ignored` the fields that have no
    effect. Raises as `granted_priority` does."""
    job = prepared.job
    if job.priority and allowed is None:
        ignored.add("priority")
    for field in job.unheeded:
        ignored.add(client_name(field, prepared.names))
    return replace(job, priority=granted_priority(job.priority, allowed), client=client)
