"""The pointwise parts of a layer: norms, rotation, cache rows, gates. By PyTorch anywhere, by Triton on a GPU."""
