"""The cluster's API: the only place that talks to it."""
