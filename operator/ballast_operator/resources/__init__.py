"""Builders of the children, one kind per file. Pure."""
