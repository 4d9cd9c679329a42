"""Runs third-party clients against a server, each in an environment of its own."""
