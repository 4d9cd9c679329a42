"""The Kubernetes operator of Ballast. It shares contracts with the runtime (flags, metric names), and no code."""
