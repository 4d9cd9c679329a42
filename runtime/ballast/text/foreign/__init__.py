"""Templates and tokenizers that come with a model: what they do is decided by whoever wrote the file, so it is done in
a guarded process."""
