"""Makes the built-in model: its corpus, its vocabulary, its training, its file and its marks.

Run from the repository's root: `python -m tools.tiny_model.train`, `.export`, `.evaluate`; see the model card.
"""
