"""Makes the built-in model: corpus, vocabulary, training, file and evaluation.

Run these modules from the repository's root: `python -m tools.tiny_model.train`, `.export`, `.evaluate`. See the model
card.
"""
