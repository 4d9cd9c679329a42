"""Places beside the KV cache for the blocks that it gives up: host memory beside a GPU, and a folder on disk."""
