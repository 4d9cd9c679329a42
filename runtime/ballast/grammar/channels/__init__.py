"""Constrains replies whose messages are on channels."""
