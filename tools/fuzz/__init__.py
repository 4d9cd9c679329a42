"""Fuzzes what reads files that others wrote: GGUF, config.json, tokenizer.json, placement rules and --config.

`make fuzz` runs it. Each case is made from a seed, its kind and its number alone, so that any one can be run again.
"""
