"""The commands of `ballast-operator` except `run`."""
