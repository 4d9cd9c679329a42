"""The Jobs that download and remove models, and their policies. Pure."""
