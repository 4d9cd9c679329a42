"""What the commands of `ballast-operator` besides `run` do."""
