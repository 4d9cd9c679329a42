"""OCI registries: the GGUF files of artifacts that ORAS, Docker Model Runner or ModelPack published.

The manifest's digest is the commit, and each layer's digest identifies its file. Requests follow the distribution
specification: https://github.com/opencontainers/distribution-spec."""

from __future__ import annotations

import hashlib
import ipaddress
import re

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from ballast.documents.json_document import parse_json
from ballast.errors import BallastError, ModelError, shown
from ballast.hub.apis import Get, HubApi, Listing
from ballast.hub.errors import NotFoundError, TokenError
from ballast.hub.naming import HubFile, HubName, check_file
from ballast.hub.registry_login import RegistryLogin, advice

_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_TITLES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
"""Annotations with the name of a layer's file: ORAS's, then ModelPack's."""
_GGUF = re.compile(r"application/vnd\.docker\.ai\.gguf\.v\d+")
_UNTITLED = {"application/vnd.docker.ai.chat.template.jinja": "chat_template.jinja"}
"""Further layers of Docker's models that have no title."""
_UNPACK = "io.deis.oras.content.unpack"
"""ORAS's annotation of a folder, which is an archive."""
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_MAX_LAYERS = 4096
_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


class Registry(HubApi):
    """The registry of a name, with the credentials of Docker's configuration or of the environment."""

    credential_variable = "DOCKER_CONFIG"
    endpoint_variable = ""  # the name contains the host
    cache_variable = "BALLAST_MODEL_CACHE"

    def __init__(self) -> None:
        self._login = RegistryLogin()
        self.auth = self._login

    def listing(self, name: HubName, get: Get) -> Listing:
        base = f"{_address(name.repo)}/manifests"
        digest, manifest = _read_manifest(name.repo, name.revision, get(f"{base}/{name.revision}", _accept()))
        if manifest.manifests:
            chosen = _of_index(name, manifest.manifests)
            digest, manifest = _read_manifest(name.repo, chosen, get(f"{base}/{chosen}", _accept()))
            if manifest.manifests:
                raise ModelError(name.repo, "its index contains another index; select the manifest with @sha256:…")
        return Listing(digest.removeprefix("sha256:"), "", _files(name.repo, manifest.layers))

    def file_path(self, repo: str, address: str, file: HubFile) -> str:
        return f"{_address(repo)}/blobs/sha256:{file.content}"

    def refusal(self, repo: str, response: httpx2.Response) -> BallastError | None:
        if response.status_code in (401, 403):
            problem = f"the registry answers {response.status_code}: check the name; "
            return TokenError("model", repo, problem + advice(self._login.is_known))
        if response.status_code == 404:
            return NotFoundError("model", repo, "the registry has no such repository, tag or digest")
        return None


class _Descriptor(BaseModel):
    model_config = ConfigDict(strict=True)
    mediaType: str  # noqa: N815  the specification's word
    digest: str
    size: int
    annotations: dict[str, str] | None = None
    platform: dict[str, object] | None = None

    def annotation(self, name: str) -> str | None:
        return (self.annotations or {}).get(name)


class _Manifest(BaseModel):
    """A manifest or an index."""

    model_config = ConfigDict(strict=True)
    schemaVersion: int  # noqa: N815
    mediaType: str | None = None  # noqa: N815
    layers: list[_Descriptor] = Field(default_factory=list, max_length=_MAX_LAYERS)
    manifests: list[_Descriptor] = Field(default_factory=list, max_length=_MAX_LAYERS)


def _accept() -> dict[str, str]:
    return {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}


def _address(repo: str) -> str:
    """The URL of a repository. As in Docker, only a registry on this machine is used without TLS."""
    host, _, path = repo.partition("/")
    if host in _DOCKER_HUB:
        host, path = "registry-1.docker.io", path if "/" in path else f"library/{path}"
    return f"{'http' if _is_loopback(host) else 'https'}://{host}/v2/{path}"


def _is_loopback(host: str) -> bool:
    name = host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _read_manifest(repo: str, reference: str, body: bytes) -> tuple[str, _Manifest]:
    """The manifest and its digest. Raises DocumentError, and ModelError if the digest differs from the requested
    one."""
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if ":" in reference and digest != reference:
        raise ModelError(repo, f"the registry answers {reference} with a manifest of another digest, {digest}")
    manifest = parse_json(body, _Manifest)
    if manifest.schemaVersion != 2:
        raise ModelError(repo, f"its manifest has version {manifest.schemaVersion}; expected 2")
    return digest, manifest


def _of_index(name: HubName, manifests: list[_Descriptor]) -> str:
    """The digest of the only manifest that can be a model, which excludes attestations and images of other
    platforms."""
    found = [each for each in manifests if each.mediaType in _MANIFESTS and not _is_attestation(each)]
    if len(found) > 1:
        found = [each for each in found if (each.platform or {}).get("architecture") in (None, "amd64")]
    digests = {each.digest for each in found}
    if len(digests) != 1 or not _DIGEST.fullmatch(found[0].digest):
        listed = "".join(f"\n  oci://{name.repo}@{shown(each.digest, 80)}" for each in manifests[:20])
        raise NotFoundError("model", name.written, f"is an index of {len(manifests)} manifests; select one:{listed}")
    return found[0].digest


def _is_attestation(manifest: _Descriptor) -> bool:
    return (
        manifest.annotation("vnd.docker.reference.type") is not None
        or (manifest.platform or {}).get("architecture") == "unknown"
    )


def _files(repo: str, layers: list[_Descriptor]) -> tuple[HubFile, ...]:
    """The layers that are single files. Weights without a title get one from their order."""
    weights = [layer for layer in layers if _GGUF.fullmatch(layer.mediaType) and _title(layer) is None]
    files: dict[str, HubFile] = {}
    for layer in layers:
        title = _title(layer)
        if title is None:
            title = _UNTITLED.get(layer.mediaType)
        if layer in weights:
            shard = f"-{weights.index(layer) + 1:05}-of-{len(weights):05}" if len(weights) > 1 else ""
            title = f"model{shard}.gguf"
        if title is None or _is_archive(layer):
            continue
        if not _DIGEST.fullmatch(layer.digest):
            raise ModelError(repo, f"{shown(title)}: the digest {shown(layer.digest, 200)} is not a SHA-256 digest")
        file = check_file(repo, HubFile(title, layer.size, layer.digest.removeprefix("sha256:")))
        if files.setdefault(title, file) != file:
            raise ModelError(repo, f"has two files with the name {title}; it is not downloaded")
    return tuple(files.values())


def _title(layer: _Descriptor) -> str | None:
    return next((title for name in _TITLES if (title := layer.annotation(name)) is not None), None)


def _is_archive(layer: _Descriptor) -> bool:
    kind, _, packing = layer.mediaType.partition("+")
    return layer.annotation(_UNPACK) == "true" or kind.endswith(".tar") or packing in ("gzip", "zstd")
