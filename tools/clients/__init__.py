"""Runs other people's clients against a server, each in an environment of its own."""
