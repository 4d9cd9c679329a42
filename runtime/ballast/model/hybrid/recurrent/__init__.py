"""Layers with recurrent state on a device: the states of sequences, the division of a step, and the kernels."""
