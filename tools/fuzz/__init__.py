"""Fuzzes the code that reads untrusted files: GGUF, config.json, tokenizer.json, placement rules and --config.

`make fuzz` runs it. A case depends only on a seed, its kind and its number, so each one can be run again.
"""
