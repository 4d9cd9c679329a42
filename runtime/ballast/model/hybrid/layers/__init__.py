"""What a layer computes on the GPU: each kind of attention, slice by slice, and the embedding."""
