"""A real Kubernetes control plane on loopback for tests and benchmarks, with made-up nodes and injected faults."""
