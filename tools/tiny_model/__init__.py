"""Makes the built-in model: corpus, vocabulary, training, file and evaluation.

Run from the repository's root: `python -m tools.tiny_model.train`, `.export`, `.evaluate`; see the model card.
"""
