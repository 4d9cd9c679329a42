"""Reads the mixers of all layers from a file's keys and tensors."""
