"""Qwen3's mixture-of-experts models."""
