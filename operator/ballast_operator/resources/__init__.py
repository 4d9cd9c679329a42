"""Builders of the children, one owned kind a file. Pure."""
