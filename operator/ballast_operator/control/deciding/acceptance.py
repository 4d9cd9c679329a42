"""Evaluates the answer to a dry run. Pure."""

from __future__ import annotations

NO_DRY_RUN = "does not support dry run"
"""Part of the API server's message if a webhook with side effects would be called."""
OVER_QUOTA = "exceeded quota"
"""Part of its message if a quota is used up, possibly by the pod that would be replaced."""


def is_inconclusive(status: int, message: str) -> bool:
    """Whether a rejected dry run is inconclusive: it could not be tried, or another object uses the quota."""
    return (status == 400 and NO_DRY_RUN in message) or (status == 403 and OVER_QUOTA in message)
