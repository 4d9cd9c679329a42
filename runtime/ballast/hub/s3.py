"""S3-compatible stores: lists the objects below a prefix page by page, and signs requests like AWS's tools.

botocore provides credentials and signatures. It reads environment variables, files of the AWS CLI, and the identity
that a cloud gives a pod or machine. Buckets are part of the path, which every such store accepts on its own host."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Generator, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import httpx2

from ballast.documents.small_file import DocumentError
from ballast.errors import BallastError, ConfigError, ModelError, how_to_install, shown
from ballast.hub.apis import MAX_FILES, Get, Head, HubApi, Listing, commit_of
from ballast.hub.checksum import Checksum
from ballast.hub.errors import NotFoundError, TokenError, WrongBytesError
from ballast.hub.naming import HubFile, HubName, check_file

if TYPE_CHECKING:
    from botocore.credentials import Credentials

_MD5 = re.compile("[0-9a-f]{32}")
_ERROR_BYTES = 4096
"""Maximum size of the body of an error response."""
_REFUSALS = {
    "AuthorizationHeaderMalformed": "AWS_REGION is not the bucket's region",
    "ExpiredToken": "AWS_SESSION_TOKEN has expired",
    "InvalidAccessKeyId": "the store does not know AWS_ACCESS_KEY_ID",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID",
}


class S3Store(HubApi):
    """One store, used with the environment's credentials; without credentials, only its public buckets."""

    credential_variable = "AWS_ACCESS_KEY_ID"
    endpoint_variable = "AWS_ENDPOINT_URL"
    cache_variable = "BALLAST_MODEL_CACHE"
    follows_redirects = False  # a signature is valid for one host, and a session token must not be sent to another

    def __init__(self) -> None:
        self._signer = _Signer()
        self.auth = self._signer

    def listing(self, name: HubName, get: Get) -> Listing:
        bucket, _, folder = name.repo.partition("/")
        prefix = f"{folder}/" if folder else ""
        files: list[HubFile] = []
        token, seen = "", set[str]()
        while True:
            page = _read_page(get(_listing_path(bucket, prefix, token), {}))
            files += _files(name.repo, prefix, page)
            if len(files) > MAX_FILES:
                raise ModelError(name.repo, f"has more than {MAX_FILES} objects; use a longer prefix")
            if page.findtext("IsTruncated") != "true":
                break
            token = page.findtext("NextContinuationToken") or ""
            if not token or token in seen:
                raise ModelError(name.repo, "the store's listing never ends: a page refers to itself as the next one")
            seen.add(token)
        return Listing(commit_of(files), "", tuple(files))

    def file_path(self, repo: str, address: str, file: HubFile) -> str:
        return f"/{quote(f'{repo}/{file.path}')}"

    def file_headers(self, file: HubFile) -> dict[str, str]:
        return {"If-Match": file.etag}

    def checksum(self, repo: str, file: HubFile, head: Head) -> Checksum | None:
        path = self.file_path(repo, "", file)
        return _checksum(file, head(path, {**self.file_headers(file), "x-amz-checksum-mode": "ENABLED"}))

    def refusal(self, repo: str, response: httpx2.Response) -> BallastError | None:
        status, region = response.status_code, response.headers.get("x-amz-bucket-region")
        code = _error_code(response)
        if status == 412:
            return WrongBytesError(repo, "an object has changed since it was listed; pull again")
        if region is not None and region != region_of_environment() and status in (301, 307, 400, 403):
            return ConfigError(
                "AWS_REGION", region_of_environment(), f"the bucket is in {shown(region)}; use that region"
            )
        if status == 404 and code in ("", "NoSuchBucket", "NoSuchKey"):
            what = "the store has no such bucket" if code == "NoSuchBucket" else "the store has no such object"
            return NotFoundError("model", repo, f"{what}; check the name and AWS_ENDPOINT_URL")
        if status in (400, 401, 403, 404):
            advice = _REFUSALS.get(code) or (
                "check that AWS_ACCESS_KEY_ID may list the bucket and read its objects"
                if self._signer.credentials is not None
                else "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY if it is private"
            )
            return TokenError("model", repo, f"the store answers {f'{status} {code}'.strip()}: {advice}")
        return None


def region_of_environment() -> str:
    """The region in AWS_REGION or AWS_DEFAULT_REGION."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def endpoint_of_environment() -> str:
    """The store at AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; by default AWS's in the region."""
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if named:
        return named.strip()
    region = region_of_environment()
    return f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


class _Signer(httpx2.Auth):
    """Signs each request with the credentials that are valid at that time."""

    @cached_property
    def credentials(self) -> Credentials | None:
        """None for anonymous requests. Raises ConfigError."""
        try:
            from botocore.exceptions import BotoCoreError, ClientError
            from botocore.session import get_session
        except ImportError as error:
            raise ConfigError(
                "model", "s3://…", f"needs botocore, which is not installed; {how_to_install('s3')}"
            ) from error
        try:
            return get_session().get_credentials()
        except (BotoCoreError, ClientError) as error:
            raise TokenError(
                "AWS_ACCESS_KEY_ID", "…", f"no credentials were found: {shown(str(error), 300)}"
            ) from error

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        if self.credentials is not None:
            self._sign(request, self.credentials)
        yield request

    def _sign(self, request: httpx2.Request, credentials: Credentials) -> None:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError, ClientError

        signed = AWSRequest(request.method, str(request.url), headers=_amazon_headers(request))
        try:
            S3SigV4Auth(credentials.get_frozen_credentials(), "s3", region_of_environment()).add_auth(signed)
        except (BotoCoreError, ClientError) as error:
            raise TokenError(
                "AWS_ACCESS_KEY_ID", "…", f"the request could not be signed: {shown(str(error), 300)}"
            ) from error
        request.headers.update(dict(signed.headers.items()))


def _amazon_headers(request: httpx2.Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("x-amz-")}


def _listing_path(bucket: str, prefix: str, token: str) -> str:
    parameters = {
        "list-type": "2",
        "encoding-type": "url",
        "prefix": prefix,
        **({"continuation-token": token} if token else {}),
    }
    query = "&".join(f"{name}={quote(value, '')}" for name, value in parameters.items())
    return f"/{bucket}?{query}"


def _read_page(body: bytes) -> ElementTree.Element[str]:
    """The page without namespaces. Entities are refused, because they can make a small document grow without limit."""
    try:
        text = body.decode()
        if "<!" in text:
            raise DocumentError("declares entities, which are not allowed")
        page = ElementTree.fromstring(text)  # noqa: S314  without declarations nothing expands
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise DocumentError(f"is not XML: {error}") from error
    for element in page.iter():
        element.tag = element.tag.rpartition("}")[2]
    if page.tag != "ListBucketResult":
        raise DocumentError(f"is {shown(page.tag, 100)}, not ListBucketResult")
    return page


def _files(repo: str, prefix: str, page: ElementTree.Element[str]) -> Iterator[HubFile]:
    is_encoded = page.findtext("EncodingType") == "url"
    for found in page.iter("Contents"):
        written = found.findtext("Key") or ""
        key = unquote_plus(written) if is_encoded else written
        if not key.startswith(prefix):
            raise ModelError(
                repo, f"the store lists an object outside of the prefix, {shown(key)}; it is not downloaded"
            )
        if key.endswith("/"):  # marks an empty folder
            continue
        etag, size = found.findtext("ETag") or "", found.findtext("Size") or ""
        if not (size.isascii() and size.isdecimal() and len(size) < 20):
            raise ModelError(repo, f"the store reports the invalid size {shown(size)} for {shown(key)}")
        if not (etag.isascii() and etag.isprintable() and 0 < len(etag) <= 256):
            raise ModelError(repo, f"the store reports the invalid ETag {shown(etag)} for {shown(key)}")
        yield check_file(repo, HubFile(key.removeprefix(prefix), int(size), _content(key, size, etag), etag))


def _content(key: str, size: str, etag: str) -> str:
    """The identifier of the object's bytes. An ETag of a multi-part upload, or of another form, identifies a version of
    a key."""
    bare = etag.strip('"')
    if _MD5.fullmatch(bare):
        return bare
    version = "\0".join((key, size, etag))
    return f"etag-{hashlib.sha256(version.encode()).hexdigest()}"


def _checksum(file: HubFile, headers: Mapping[str, str]) -> Checksum | None:
    """The uploader's SHA-256, otherwise the ETag if it is an MD5. The ETag of a multi-part upload is a checksum of
    checksums, and that of an encrypted object is not a checksum."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        digest = base64.b64decode(lower.get("x-amz-checksum-sha256", ""), validate=True)
    except binascii.Error:  # of a multi-part upload: it ends in the number of parts
        digest = b""
    if len(digest) == 32 and lower.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
        return Checksum("sha256", digest.hex())
    is_encrypted = lower.get("x-amz-server-side-encryption", "AES256") != "AES256" or any(
        name.startswith("x-amz-server-side-encryption-customer") for name in lower
    )
    return Checksum("md5", file.content) if _MD5.fullmatch(file.content) and not is_encrypted else None


def _error_code(response: httpx2.Response) -> str:
    """The store's error code; empty if there is none."""
    try:
        start = next(response.iter_raw(_ERROR_BYTES), b"")
    except httpx2.HTTPError:
        return ""
    found = re.search(rb"<Code>([A-Za-z0-9]{1,64})</Code>", start)
    return "" if found is None else found[1].decode()
