"""Plans the memory of GPUs."""
