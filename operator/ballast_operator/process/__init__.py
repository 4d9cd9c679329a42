"""The operator's process: watches, leadership, health, and what holds them together."""
