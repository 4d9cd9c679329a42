"""The Kubernetes operator of Ballast. With the runtime it shares contracts (flags, endpoints, metric names), no code."""
