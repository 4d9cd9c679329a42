"""How a hub is asked: its addresses, and the form in which it lists a repository. Pure.

Hugging Face's as in `huggingface_hub`, ModelScope's as in `modelscope.hub`, https://github.com/modelscope/modelscope.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from ballast.documents.json_document import parse_json
from ballast.errors import ModelError, shown
from ballast.hub.naming import HubFile, HubName, check_file

_MOST_FILES = 50_000


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds."""

    commit: str
    """40 hexadecimal digits that mean these files and no others."""
    address: str
    """What stands for it in the address of a file."""
    files: tuple[HubFile, ...]


class HubApi(Protocol):
    """The way one kind of hub is asked."""

    credential_variable: str
    endpoint_variable: str
    cache_variable: str

    def listing_path(self, name: HubName) -> str:
        """Where the files of a revision are listed."""

    def read_listing(self, name: HubName, body: bytes) -> Listing:
        """Raises DocumentError for a body of another form, ModelError for what no honest hub says."""

    def file_path(self, repo: str, address: str, path: str) -> str:
        """Where the bytes of a file are."""

    def token_headers(self, token: str) -> dict[str, str]:
        """What tells who asks."""


class HuggingFace:
    """Also of its mirrors."""

    credential_variable = "HF_TOKEN"
    endpoint_variable = "HF_ENDPOINT"
    cache_variable = "HF_HUB_CACHE"

    def listing_path(self, name: HubName) -> str:
        return f"/api/models/{name.repo}/revision/{quote(name.revision, safe='')}?blobs=true"

    def read_listing(self, name: HubName, body: bytes) -> Listing:
        said = parse_json(body, _Listing)
        files = [
            HubFile(
                found.rfilename,
                -1 if found.size is None else found.size,
                (found.blobId if found.lfs is None else found.lfs.sha256) or "",
            )
            for found in said.siblings
        ]
        return Listing(said.sha, said.sha, tuple(check_file(name.repo, file) for file in files))

    def file_path(self, repo: str, address: str, path: str) -> str:
        return f"/{repo}/resolve/{address}/{quote(path)}"

    def token_headers(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}


class ModelScope:
    """It names no commit of a branch: the names and checksums of its files stand for that."""

    credential_variable = "MODELSCOPE_API_TOKEN"
    endpoint_variable = "MODELSCOPE_DOMAIN"
    cache_variable = "MODELSCOPE_CACHE"

    def listing_path(self, name: HubName) -> str:
        return f"/api/v1/models/{name.repo}/repo/files?Revision={quote(name.revision, safe='')}&Recursive=true"

    def read_listing(self, name: HubName, body: bytes) -> Listing:
        said = parse_json(body, _ScopeAnswer)
        if said.Data is None:
            raise ModelError(name.repo, f"the hub says {shown(said.Message or str(said.Code), 300)}")
        blobs = [found for found in said.Data.Files if found.Type == "blob"]
        files = tuple(check_file(name.repo, HubFile(found.Path, found.Size, found.Sha256.lower())) for found in blobs)
        told = "\n".join(f"{file.path}\0{file.content}" for file in sorted(files, key=lambda file: file.path))
        digest = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()
        is_commit = re.fullmatch("[0-9a-f]{40}", name.revision) is not None
        return Listing(name.revision if is_commit else digest, name.revision, files)

    def file_path(self, repo: str, address: str, path: str) -> str:
        return f"/models/{repo}/resolve/{quote(address, safe='')}/{quote(path)}"

    def token_headers(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={quote(token)}"}


class _Lfs(BaseModel):
    model_config = ConfigDict(strict=True)
    sha256: str


class _Sibling(BaseModel):
    model_config = ConfigDict(strict=True)
    rfilename: str
    size: int | None = None
    blobId: str | None = None  # noqa: N815  the hub's word
    lfs: _Lfs | None = None


class _Listing(BaseModel):
    model_config = ConfigDict(strict=True)
    sha: str
    siblings: list[_Sibling] = Field(max_length=_MOST_FILES)


class _ScopeFile(BaseModel):
    model_config = ConfigDict(strict=True)
    Path: str
    Type: str
    Size: int = -1
    Sha256: str = ""


class _ScopeFiles(BaseModel):
    model_config = ConfigDict(strict=True)
    Files: list[_ScopeFile] = Field(max_length=_MOST_FILES)


class _ScopeAnswer(BaseModel):
    model_config = ConfigDict(strict=True)
    Code: int
    Message: str | None = None
    Data: _ScopeFiles | None = None
