"""Reads objects from the API server, and reports of the running processes. Nothing here writes."""
