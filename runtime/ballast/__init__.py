"""Ballast: DeepSeek-class mixture-of-experts models from one GPU and a lot of host memory."""

__version__ = "0.1.0"
