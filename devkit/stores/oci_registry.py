"""A real OCI registry on loopback (`distribution` with a folder), and functions that push artifacts to it.

It may require a password, or tokens from the token service in this file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from devkit.cluster.binaries import program
from devkit.cluster.process import Process, free_port
from devkit.cluster.waiting import wait_for

USER, PASSWORD = "tester", "secret:of+tester"
BASIC = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
_HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuD6/6Evg2rZq.DEYdQBmfCLmlMu.TIXW\n"
TITLE = "org.opencontainers.image.title"
MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"


def docker_config(host: str, **entry: str) -> str:
    """Docker's configuration with the credentials of one registry."""
    return json.dumps({"auths": {host: entry or {"auth": BASIC.removeprefix("Basic ")}}, "credsStore": "desktop"})


@dataclass
class TokenService:
    """Issues tokens to the user, and records the requests. `identity_token`: accepted instead of the password."""

    url: str = ""
    identity_token: str = field(default_factory=lambda: secrets.token_hex(16))
    requested: list[str] = field(default_factory=list)
    anonymous_may: bool = False
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def jwks(self) -> str:
        public = _base64url(self.key.public_key().public_bytes_raw())
        return json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "use": "sig", "x": public}]})

    def token(self, repo: str, *actions: str) -> str:
        now = int(time.time())
        claims = {"iss": "tests", "aud": "registry", "sub": USER, "iat": now - 5, "nbf": now - 5, "exp": now + 300}
        access = [{"type": "repository", "name": repo, "actions": list(actions)}]
        parts = ({"alg": "EdDSA", "typ": "JWT", "kid": "k"}, {**claims, "jti": "1", "access": access})
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_base64url(self.key.sign(signed.encode()))}"


@dataclass
class Registry:
    """The registry at `host`."""

    host: str
    folder: Path
    tokens: TokenService
    auth: str

    def push(self, repo: str, tag: str, layers: Sequence[tuple[str, bytes, Mapping[str, str]]], **more: Any) -> str:
        """Push an artifact with these layers: media type, bytes and annotations. Returns its digest."""
        blobs = [self._descriptor(repo, *layer) for layer in layers]
        config = self._descriptor(repo, "application/vnd.oci.empty.v1+json", b"{}", {})
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": blobs, **more}
        return self.push_manifest(repo, tag, manifest)

    def push_manifest(self, repo: str, tag: str, manifest: Mapping[str, Any]) -> str:
        """Push a manifest or an index unchanged. Returns its digest."""
        body = json.dumps(manifest).encode()
        headers = {**self._headers(repo), "Content-Type": manifest["mediaType"]}
        done = httpx2.put(f"http://{self.host}/v2/{repo}/manifests/{tag}", content=body, headers=headers)
        assert done.status_code == 201, done.text
        return _digest(body)

    def blob_file(self, body: bytes) -> Path:
        """The file that holds a blob."""
        digest = _digest(body).removeprefix("sha256:")
        return self.folder / f"docker/registry/v2/blobs/sha256/{digest[:2]}/{digest}/data"

    def _descriptor(self, repo: str, kind: str, body: bytes, annotations: Mapping[str, str]) -> dict[str, Any]:
        headers = self._headers(repo)
        begun = httpx2.post(f"http://{self.host}/v2/{repo}/blobs/uploads/", headers=headers)
        assert begun.status_code == 202, begun.text
        url = httpx2.URL(begun.headers["Location"]).copy_merge_params({"digest": _digest(body)})
        done = httpx2.put(url, content=body, headers={**headers, "Content-Type": "application/octet-stream"})
        assert done.status_code == 201, done.text
        return {"mediaType": kind, "digest": _digest(body), "size": len(body), "annotations": dict(annotations)}

    def _headers(self, repo: str) -> dict[str, str]:
        if self.auth == "token":
            return {"Authorization": f"Bearer {self.tokens.token(repo, 'pull', 'push')}"}
        return {"Authorization": BASIC} if self.auth == "basic" else {}


@contextmanager
def oci_registry(folder: Path, auth: Literal["none", "basic", "token"] = "none") -> Iterator[Registry]:
    """Run the registry; it stores blobs below `folder`."""
    folder.mkdir(parents=True)
    port = free_port()
    with ExitStack() as stack:
        tokens = stack.enter_context(_token_service())
        (folder / "jwks.json").write_text(tokens.jwks())
        (folder / "htpasswd").write_text(_HTPASSWD)
        requested = {
            "none": {},
            "basic": {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}},
            "token": {
                "token": {
                    "realm": tokens.url,
                    "issuer": "tests",
                    "service": "registry",
                    "jwks": str(folder / "jwks.json"),
                    "signingalgorithms": ["EdDSA"],
                }
            },
        }[auth]
        config = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(folder)}},
            "http": {"addr": f"127.0.0.1:{port}", "secret": "tests"},
            **({"auth": requested} if requested else {}),
        }
        (folder / "config.json").write_text(json.dumps(config))  # JSON is valid YAML
        environment = {"OTEL_TRACES_EXPORTER": "none"}
        process = Process("registry", [program("registry"), "serve", folder / "config.json"], folder, environment)
        process.start()
        stack.callback(process.stop)

        def is_there() -> bool:
            process.check()
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", port)) == 0

        wait_for("the registry to listen", is_there, 20)
        yield Registry(f"127.0.0.1:{port}", folder, tokens, auth)


@contextmanager
def _token_service() -> Iterator[TokenService]:
    service = TokenService()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            who = self.headers.get("Authorization")
            self._answer(parse_qs(urlsplit(self.path).query), who == BASIC or (who is None and service.anonymous_may))

        def do_POST(self) -> None:
            fields = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self._answer(fields, fields.get("refresh_token") == [service.identity_token])

        def _answer(self, fields: Mapping[str, list[str]], may: bool) -> None:
            [scope] = fields["scope"]
            service.requested.append(scope)
            _, repo, actions = scope.split(":")
            body = json.dumps({"access_token": service.token(repo, *actions.split(","))} if may else {}).encode()
            self.send_response(200 if may else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}/token"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
