"""The part of a spec that describes pods: containers, volumes, probes, security and scheduling."""
