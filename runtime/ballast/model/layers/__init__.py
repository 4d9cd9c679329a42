"""The parts of layers: each mixer and feed-forward has sizes and declares its tensors."""
