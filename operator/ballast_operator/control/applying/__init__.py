"""Writes children, pods and events. The control loop writes them only here."""
