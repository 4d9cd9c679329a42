"""Runs third-party clients against a server, each in its own environment."""
