"""Which priority a request gets: clients may ask for one only as far as the server lets them."""

from __future__ import annotations

from ballast.config.whole_range import WholeRange
from ballast.wire.parsing import refuse


def granted_priority(asked: int | None, allowed: WholeRange | None) -> int:
    """The priority of a request that asks for `asked`. Without an allowed range all requests are equal.

    Raises RequestError for a priority outside of the range.
    """
    if allowed is None:
        return 0
    if asked is not None and asked not in allowed:
        refuse("priority", f"{asked} is not among those that this client may ask for, which are {allowed}")
    return allowed.nearest(0) if asked is None else asked
