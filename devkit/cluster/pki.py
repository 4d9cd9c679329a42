"""Certificates of one cluster, and kubeconfig files that contain them."""

from __future__ import annotations

import base64
from pathlib import Path

import trustme
import yaml


class Pki:
    """One authority for servers and clients, one for the front proxy, one key for service account tokens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.folder = folder
        self._authority = trustme.CA()
        self._front_proxy = trustme.CA()
        self.ca = self._write("ca.crt", self._authority.cert_pem.bytes())
        self.front_proxy_ca = self._write("front-proxy-ca.crt", self._front_proxy.cert_pem.bytes())
        self._issue(self._front_proxy, "front-proxy-client", "front-proxy-client", None, ())
        self.service_account_key = self._issue(self._authority, "service-accounts", "service-accounts", None, ())[1]

    def server(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """(certificate, key) for a server with these names and addresses."""
        return self._issue(self._authority, name, name, None, hosts)

    def client(self, user: str, group: str | None = None) -> tuple[Path, Path]:
        """(certificate, key) that the API server accepts for `user` in `group`."""
        return self._issue(self._authority, user.replace(":", "-"), user, group, ())

    def front_proxy_client(self) -> tuple[Path, Path]:
        return self.folder / "front-proxy-client.crt", self.folder / "front-proxy-client.key"

    def _issue(
        self, authority: trustme.CA, name: str, user: str, group: str | None, hosts: tuple[str, ...]
    ) -> tuple[Path, Path]:
        issued = authority.issue_cert(*(hosts or (f"{name}.invalid",)), common_name=user, organization_name=group)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return self._write(f"{name}.crt", chain), self._write(f"{name}.key", issued.private_key_pem.bytes())

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path


def kubeconfig(
    path: Path, server: str, ca: Path | None = None, client: tuple[Path, Path] | None = None, token: str | None = None
) -> Path:
    """Write a self-contained kubeconfig."""
    cluster: dict[str, str] = {"server": server}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca.read_bytes()).decode()
    user: dict[str, str] = {}
    if client is not None:
        user["client-certificate-data"] = base64.b64encode(client[0].read_bytes()).decode()
        user["client-key-data"] = base64.b64encode(client[1].read_bytes()).decode()
    if token is not None:
        user["token"] = token
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path
