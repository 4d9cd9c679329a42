"""The stages in which a hybrid model is loaded."""
