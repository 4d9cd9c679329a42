"""Turns the evidence of one pass into conditions, status and events. Pure."""
