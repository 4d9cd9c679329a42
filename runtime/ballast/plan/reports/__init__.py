"""Shows a plan, or why it does not fit."""
