"""Whether an answer to a dry run says that the object would not be accepted. Pure."""

from __future__ import annotations

NO_DRY_RUN = "does not support dry run"
"""What the API server says where a webhook with side effects would have to be asked."""
OVER_QUOTA = "exceeded quota"
"""What it says where a quota is used up, which the pod that would go may be the cause of."""


def is_inconclusive(status: int, message: str) -> bool:
    """Whether a refused dry run says nothing of the object: it could not be tried, or another holds its room."""
    return (status == 400 and NO_DRY_RUN in message) or (status == 403 and OVER_QUOTA in message)
