"""The parts of a model's name on a hub (repository, quantisation, revision), and the files that belong to them. Pure.

Names from a hub are not trusted: names that lead out of the folder or contain control characters are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from ballast.errors import ConfigError, ModelError, shown
from ballast.host.sizes import human
from ballast.hub.errors import NotFoundError
from ballast.weights.model_files import is_extra_file

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
HUGGING_FACE = "hf.co"
_SITES = {
    **dict.fromkeys(("hf.co", "huggingface.co"), HUGGING_FACE),
    **dict.fromkeys(("modelscope.cn", "www.modelscope.cn"), "modelscope.cn"),
    **dict.fromkeys(("modelscope.ai", "www.modelscope.ai"), "modelscope.ai"),
}
"""Prefixes of names that select a hub → the hub's name."""
S3, OCI = "s3", "oci"
"""The schemes of S3-compatible stores and OCI registries."""
SITES = (*dict.fromkeys(_SITES.values()), S3, OCI)
_NAME = re.compile(
    rf"((?P<site>{'|'.join(map(re.escape, _SITES))})/)?(?P<repo>{_PART}/{_PART})"
    r"(:(?P<quant>[^/\s].*?))?(@(?P<revision>\w[\w./-]*))?",
    re.ASCII,
)
"""A path may contain any characters, also spaces. The part after the last @ is the revision if it has the form of
one."""
_STORE_NAME = re.compile(r"s3://(?P<repo>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^:/]+)*)/?(:(?P<quant>[^/].*))?", re.ASCII)
_REGISTRY_NAME = re.compile(
    r"oci://(?P<repo>[A-Za-z0-9.-]+(:\d{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+)"
    r"(:(?P<tag>\w[\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?(:(?P<quant>[^/].*))?",
    re.ASCII,
)
"""The name of an artifact as in other tools, and the quantisation if the artifact has several."""
_MAX_REPO_BYTES = 180
"""Beginning of the name of a folder for a bucket and prefix, or for a registry's repository."""
_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})")
_QUANT = re.compile(
    r"(?:^|[-._/ ])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|(?:MX|NV)FP4(?:_MOE)?|BF16|F16|F32))(?=$|[-./ ])",
    re.IGNORECASE,
)
_IMATRIX = re.compile(r"(?:^|[-._ ])imatrix(?=$|[-._ ])", re.IGNORECASE)
_CONTENT = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|etag-[0-9a-f]{64}")
_COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""Files to download with the weights; never code."""

_MAX_BYTES = 1 << 44
"""Maximum size of a file. The largest models are a tenth of this in total."""
_MAX_COMPANION_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class HubName:
    """A name such as `org/repo:Q4_K_M@main`. A GGUF file's path may replace the quantisation."""

    repo: str
    quant: str | None = None
    revision: str = "main"
    site: str = HUGGING_FACE

    @property
    def written(self) -> str:
        """The repository in the form that commands accept; for an artifact, with its tag or digest."""
        written = repo_at(self.site, self.repo)
        if self.site != OCI:
            return written
        return f"{written}{'@' if ':' in self.revision else ':'}{self.revision}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `content` identifies its bytes: their SHA-256, the SHA-1 of a git blob, their MD5, or
    `etag-` and a hash of an S3-compatible store's name of this version of the object."""

    path: str
    num_bytes: int
    content: str
    etag: str = ""
    """As the store reported it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of one model, in shard order; the model is opened by its first file. `quant` is the quantisation, or
    the files' name if several models have the same quantisation."""

    quant: str
    files: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        """Total size of its files."""
        return sum(file.num_bytes for file in self.files)


def is_hub_name(text: str) -> bool:
    """Whether the text has the form of a model's name on a hub."""
    try:
        read_name(text)
    except ConfigError:
        return False
    return True


def _matched(text: str) -> re.Match[str] | None:
    found = _NAME.fullmatch(text)
    if found is None or not text.isprintable():
        return None
    repo_and_revision, path = f"{found['repo']} {found['revision']}", found["quant"] or ""
    return None if ".." in repo_and_revision or ".." in path.split("/") else found


def read_name(text: str) -> HubName:
    """Raises ConfigError for text in another form."""
    if text.startswith(f"{S3}://"):
        return _read_store_name(text)
    if text.startswith(f"{OCI}://"):
        return _read_registry_name(text)
    found = _matched(text)
    if found is None:
        raise ConfigError(
            "model",
            text,
            "expected an existing file, org/repo:QUANT[@revision] of a hub, s3://bucket/prefix[:QUANT] or "
            "oci://registry/repo:tag",
        )
    site = _SITES[found["site"] or HUGGING_FACE]
    newest = "main" if site == HUGGING_FACE else "master"
    return HubName(found["repo"], found["quant"], found["revision"] or newest, site)


def _read_store_name(text: str) -> HubName:
    """The prefix is a folder. A name that ends in .gguf is a model's only or first file."""
    found = _STORE_NAME.fullmatch(text)
    repo, quant = ("", None) if found is None else (found["repo"], found["quant"])
    if quant is None and "/" in repo and repo.endswith(".gguf"):
        repo, _, quant = repo.rpartition("/")
    if not _is_clean(text, repo, quant):
        raise ConfigError(
            "model", text, "expected s3://bucket/prefix, s3://bucket/prefix:QUANT or s3://bucket/prefix/model.gguf"
        )
    return HubName(repo, quant, site=S3)


def _read_registry_name(text: str) -> HubName:
    found = _REGISTRY_NAME.fullmatch(text)
    if found is None or not _is_clean(text, found["repo"], found["quant"]):
        raise ConfigError(
            "model",
            text,
            "expected oci://registry/repo:tag or oci://registry/repo@sha256:…, with :QUANT if it has several",
        )
    return HubName(found["repo"], found["quant"], found["digest"] or found["tag"] or "latest", OCI)


def _is_clean(text: str, repo: str, quant: str | None) -> bool:
    """Whether the text can be a folder's name and no part leads out of the folder."""
    parts = {*repo.split("/"), *(quant or "").split("/")}
    return bool(repo) and text.isprintable() and not parts & {".", ".."} and len(quote(repo, "")) <= _MAX_REPO_BYTES


def repo_at(site: str, repo: str) -> str:
    """A repository, with its hub if that is not the default."""
    if site in (S3, OCI):
        return f"{site}://{repo}"
    return repo if site == HUGGING_FACE else f"{site}/{repo}"


FOLDER_PREFIX = "models--"


def repo_folder(site: str, repo: str) -> str:
    """The name of the folder for a repository's downloads."""
    return FOLDER_PREFIX + (quote(repo, "") if site in (S3, OCI) else repo.replace("/", "--"))


def repo_of_folder(site: str, folder: str) -> str:
    """The inverse of `repo_folder`."""
    name = folder.removeprefix(FOLDER_PREFIX)
    return unquote(name) if site in (S3, OCI) else name.replace("--", "/", 1)


def check_file(repo: str, file: HubFile) -> HubFile:
    """Returns the file unchanged. Raises ModelError for an invalid name, size or checksum."""
    parts = file.path.split("/")
    if not file.path.isprintable() or "\\" in file.path or len(file.path.encode()) > 1000:
        raise ModelError(repo, f"the hub lists a file with the invalid name {shown(file.path)}; it is not downloaded")
    if any(part in ("", ".", "..") or len(part.encode()) > 250 for part in parts):
        raise ModelError(repo, f"the hub lists a file outside of its folder, {shown(file.path)}; it is not downloaded")
    if not 0 <= file.num_bytes <= _MAX_BYTES:
        raise ModelError(repo, f"{file.path}: the hub reports {file.num_bytes} bytes; expected 0 to {_MAX_BYTES}")
    if not _CONTENT.fullmatch(file.content):
        raise ModelError(repo, f"{file.path}: the hub reports an invalid checksum, {shown(file.content)}")
    return file


def choices(files: Sequence[HubFile]) -> tuple[Choice, ...]:
    """The models among the files, smallest first. A model with missing shards is left out."""
    groups: dict[tuple[str, int | None], dict[int, HubFile]] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if path.suffix != ".gguf" or _is_other_file(path):
            continue
        shard = _SHARD.fullmatch(str(path.with_suffix("")))
        key = (str(path.with_suffix("")), None) if shard is None else (shard["stem"], int(shard["count"]))
        groups.setdefault(key, {})[1 if shard is None else int(shard["index"])] = file
    found = []
    for (stem, count), shards in groups.items():
        if sorted(shards) == list(range(1, (1 if count is None else count) + 1)):
            quants = _QUANT.findall(stem)
            quant = quants[-1].upper() if quants else PurePosixPath(stem).name
            found.append((quant, stem, tuple(shards[index] for index in sorted(shards))))
    # Two models of the same quantisation are identified by their file names.
    times = Counter(quant for quant, _, _ in found)
    named = [Choice(quant if times[quant] == 1 else stem, files) for quant, stem, files in found]
    return tuple(sorted(named, key=lambda choice: (choice.num_bytes, choice.files[0].path)))


def _is_other_file(path: PurePosixPath) -> bool:
    """Whether a file belongs to a model but is not one. A model's name may have `imatrix` before a quantization."""
    is_imatrix = _IMATRIX.search(path.stem) is not None and _QUANT.search(path.stem) is None
    return is_imatrix or is_extra_file(path.name)


def choose(name: HubName, found: Sequence[Choice]) -> Choice:
    """The one choice that matches the name. Raises NotFoundError, which lists the choices, if none or several match."""
    if not found:
        raise NotFoundError("model", name.written, "has no complete GGUF model; choose another repository")
    if name.quant is None:
        fitting, problem = list(found), f"has {len(found)} models"
    else:
        wanted = name.quant.upper()
        fitting = [choice for choice in found if choice.quant.upper() == wanted] or [
            choice for choice in found if any(file.path == name.quant for file in choice.files)
        ]
        problem = f"{name.quant} is {'none' if not fitting else f'{len(fitting)}'} of its models"
    if len(fitting) == 1:
        return fitting[0]
    listed = "".join(
        f"\n  {name.written}:{choice.quant}  {human(choice.num_bytes)}  {choice.files[0].path}"
        for choice in found[:100]
    )
    raise NotFoundError("model", name.written, f"{problem}; name one:{listed}")


def companion_files(files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """config.json and the tokenizer's files, as far as they exist."""
    return tuple(file for file in files if file.path in _COMPANIONS and file.num_bytes <= _MAX_COMPANION_BYTES)
