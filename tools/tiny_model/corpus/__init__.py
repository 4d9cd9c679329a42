"""The conversations that the built-in model learns from and is examined on, all made up here from seeds."""
