"""Turns the evidence of one pass into what the user sees: conditions, status and events. Pure."""
