"""The Kubernetes operator of Ballast. It shares contracts with the runtime (flags, endpoints, metric names), no code."""
