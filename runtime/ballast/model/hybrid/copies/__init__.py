"""Copies of a step's small tables to a GPU, which do not wait for large ones."""
