"""Decides what to do about the objects: whose they are, what differs, which pods to start and stop. Pure."""
