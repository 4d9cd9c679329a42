"""Templates and tokenizers that come with a model. Their content is untrusted, so they run in a guarded process."""
