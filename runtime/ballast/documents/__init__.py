"""Small files that others wrote: JSON whose shape is known, YAML as plain values, text.

Whatever such a file holds, reading it ends soon and in little memory: with a value that can be trusted, or with a
DocumentError.
"""
