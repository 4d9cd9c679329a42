"""Where a model may come from."""
