"""Attention to the last tokens and to compressed entries (DeepSeek-V4): its operations and their kernels."""
