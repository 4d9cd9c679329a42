"""Copies of a step's small tables to a GPU that do not wait for large copies."""
