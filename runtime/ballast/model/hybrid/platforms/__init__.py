"""Device-specific services: host memory for copies, streams and events, and properties for kernels."""
