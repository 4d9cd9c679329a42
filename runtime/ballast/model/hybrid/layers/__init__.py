"""The GPU part of a layer: each kind of attention, slice by slice, and the embedding."""
