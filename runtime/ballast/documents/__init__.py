"""Small files that others wrote: JSON whose shape is known, YAML as plain values, text.

Whatever such a file holds, reading it ends soon and in little memory: with a value that can be trusted, or with a
DocumentError.
"""

from ballast.documents.json_document import read_json
from ballast.documents.small_file import DocumentError, read_text
from ballast.documents.yaml_document import Plain, read_yaml

__all__ = ["DocumentError", "Plain", "read_json", "read_text", "read_yaml"]
