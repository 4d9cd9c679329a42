"""The conversations for the built-in model's training and evaluation, all generated from seeds."""
