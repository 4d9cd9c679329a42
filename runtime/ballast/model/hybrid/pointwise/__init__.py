"""The pointwise parts of a layer: norms, rotation, cache rows, gates. PyTorch runs them on any device, Triton on a
GPU."""
