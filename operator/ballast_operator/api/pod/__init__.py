"""What a spec says about pods: containers, volumes, probes, security and scheduling."""
