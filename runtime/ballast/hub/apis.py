"""The APIs of the hubs: their URLs, and the format of a repository's listing. Pure.

Sources: `huggingface_hub` for Hugging Face, and `modelscope.hub` for ModelScope,
https://github.com/modelscope/modelscope."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from ballast.documents.json_document import parse_json
from ballast.errors import BallastError, ModelError, shown
from ballast.hub.checksum import Checksum, checksum_of
from ballast.hub.errors import NotFoundError, TokenError
from ballast.hub.naming import HubFile, HubName, check_file

MAX_FILES = 50_000


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a repository."""

    commit: str
    """40 or 64 hexadecimal digits that identify exactly these files."""
    address: str
    """Its name in the URL of a file."""
    files: tuple[HubFile, ...]


Get = Callable[[str, Mapping[str, str]], bytes]
"""Gets the document of a URL or path with these request headers."""
Head = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""The response headers of a file."""


class HubApi(ABC):
    """The API of one kind of hub. A path without a host belongs to the hub's endpoint."""

    credential_variable: str
    endpoint_variable: str
    cache_variable: str
    auth: httpx2.Auth | None = None
    """Signs requests or answers challenges; None if `token_headers` suffice."""
    follows_redirects = True

    @abstractmethod
    def listing(self, name: HubName, get: Get) -> Listing:
        """The files of the name's revision. Raises DocumentError for a document in another format, ModelError for
        invalid content, and the errors of `get`."""

    @abstractmethod
    def file_path(self, repo: str, address: str, file: HubFile) -> str:
        """The URL path of a file's content."""

    def file_headers(self, file: HubFile) -> dict[str, str]:
        """Request headers that make the hub refuse a file that has changed."""
        return {}

    def token_headers(self, token: str) -> dict[str, str]:
        """Request headers with the user's token."""
        return {}

    def checksum(self, repo: str, file: HubFile, head: Head) -> Checksum | None:
        """The checksum of a file; None if the hub does not have one."""
        return checksum_of(file.content)

    def refusal(self, repo: str, response: httpx2.Response) -> BallastError | None:
        """This hub's error for a status other than 200 and 206; None for the usual meaning of the status."""
        return None


class HuggingFace(HubApi):
    """Also the API of its mirrors."""

    credential_variable = "HF_TOKEN"
    endpoint_variable = "HF_ENDPOINT"
    cache_variable = "HF_HUB_CACHE"

    def listing(self, name: HubName, get: Get) -> Listing:
        path = f"/api/models/{name.repo}/revision/{quote(name.revision, safe='')}?blobs=true"
        return self.read_listing(name, get(path, {}))

    def read_listing(self, name: HubName, body: bytes) -> Listing:
        answer = parse_json(body, _Listing)
        files = [
            HubFile(
                found.rfilename,
                -1 if found.size is None else found.size,
                (found.blobId if found.lfs is None else found.lfs.sha256) or "",
            )
            for found in answer.siblings
        ]
        return Listing(answer.sha, answer.sha, tuple(check_file(name.repo, file) for file in files))

    def file_path(self, repo: str, address: str, file: HubFile) -> str:
        return f"/{repo}/resolve/{address}/{quote(file.path)}"

    def token_headers(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def refusal(self, repo: str, response: httpx2.Response) -> BallastError | None:
        code = response.headers.get("X-Error-Code", "")
        if code == "GatedRepo":
            advice = f"accept the terms on the hub's page, and set {self.credential_variable}"
            return TokenError("model", repo, f"its owner requires your consent: {advice}")
        if code == "RevisionNotFound":
            return NotFoundError("model", repo, "has no such revision; leave @revision out for the newest")
        return None


class ModelScope(HubApi):
    """ModelScope does not report a branch's commit: a hash of the file names and checksums replaces it."""

    credential_variable = "MODELSCOPE_API_TOKEN"
    endpoint_variable = "MODELSCOPE_DOMAIN"
    cache_variable = "MODELSCOPE_CACHE"

    def listing(self, name: HubName, get: Get) -> Listing:
        path = f"/api/v1/models/{name.repo}/repo/files?Revision={quote(name.revision, safe='')}&Recursive=true"
        return self.read_listing(name, get(path, {}))

    def read_listing(self, name: HubName, body: bytes) -> Listing:
        answer = parse_json(body, _ScopeAnswer)
        if answer.Data is None:
            raise ModelError(name.repo, f"the hub reports {shown(answer.Message or str(answer.Code), 300)}")
        blobs = [found for found in answer.Data.Files if found.Type == "blob"]
        files = tuple(check_file(name.repo, HubFile(found.Path, found.Size, found.Sha256.lower())) for found in blobs)
        is_commit = re.fullmatch("[0-9a-f]{40}", name.revision) is not None
        return Listing(name.revision if is_commit else commit_of(files), name.revision, files)

    def file_path(self, repo: str, address: str, file: HubFile) -> str:
        return f"/models/{repo}/resolve/{quote(address, safe='')}/{quote(file.path)}"

    def token_headers(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={quote(token)}"}


def commit_of(files: Iterable[HubFile]) -> str:
    """Replaces the commit if a hub does not report one: the SHA-1 of the files' names and contents."""
    named = "\n".join(f"{file.path}\0{file.content}" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha1(named.encode(), usedforsecurity=False).hexdigest()


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
    siblings: list[_Sibling] = Field(max_length=MAX_FILES)


class _ScopeFile(BaseModel):
    model_config = ConfigDict(strict=True)
    Path: str
    Type: str
    Size: int = -1
    Sha256: str = ""


class _ScopeFiles(BaseModel):
    model_config = ConfigDict(strict=True)
    Files: list[_ScopeFile] = Field(max_length=MAX_FILES)


class _ScopeAnswer(BaseModel):
    model_config = ConfigDict(strict=True)
    Code: int
    Message: str | None = None
    Data: _ScopeFiles | None = None
