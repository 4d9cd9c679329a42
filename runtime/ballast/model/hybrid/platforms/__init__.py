"""What each kind of device offers: host memory for copies, streams and events, and facts for kernels."""
