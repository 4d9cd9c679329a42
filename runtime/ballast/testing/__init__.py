"""Stand-ins and builders for tests and benchmarks; nothing here is used in serving."""
