"""A kubeconfig with a token, for tests of code that reads it."""

from pathlib import Path

import yaml


def write_credentials(path: Path, port: int, token: str, **context: str) -> None:
    """Write the file. `context`: additional fields of its context."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", **context}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    path.write_text(yaml.safe_dump(config))
