"""Grammars for replies whose messages are on channels."""
