"""What a model's name on a hub stands for: a repository, a quantisation, a revision, and the files of them. Pure.

All names that a hub says are hostile: what could leave the folder or write on a terminal is refused.
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
"""Hubs as a name may begin with them → the name that stands for each."""
S3, OCI = "s3", "oci"
"""S3-compatible stores and OCI registries, as the schemes of their names."""
SITES = (*dict.fromkeys(_SITES.values()), S3, OCI)
_NAME = re.compile(
    rf"((?P<site>{'|'.join(map(re.escape, _SITES))})/)?(?P<repo>{_PART}/{_PART})"
    r"(:(?P<quant>[^/\s].*?))?(@(?P<revision>\w[\w./-]*))?",
    re.ASCII,
)
"""A path may have spaces and any other characters. What follows its last @ is the revision if it can be one."""
_STORE_NAME = re.compile(r"s3://(?P<repo>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^:/]+)*)/?(:(?P<quant>[^/].*))?", re.ASCII)
_REGISTRY_NAME = re.compile(
    r"oci://(?P<repo>[A-Za-z0-9.-]+(:\d{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+)"
    r"(:(?P<tag>\w[\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?(:(?P<quant>[^/].*))?",
    re.ASCII,
)
"""The name of an artifact as other tools write it, and the quantisation where an artifact holds several."""
_MOST_REPO_BYTES = 180
"""Of the name of a folder that stands for a bucket and prefix or for a repository of a registry."""
_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})")
_QUANT = re.compile(
    r"(?:^|[-._/ ])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|(?:MX|NV)FP4(?:_MOE)?|BF16|F16|F32))(?=$|[-./ ])",
    re.IGNORECASE,
)
_IMATRIX = re.compile(r"(?:^|[-._ ])imatrix(?=$|[-._ ])", re.IGNORECASE)
_CONTENT = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|etag-[0-9a-f]{64}")
_BESIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files to download with the weights; never code."""

_MOST_BYTES = 1 << 44
"""Largest file. The largest models have a tenth of it in total."""
_MOST_BESIDE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class HubName:
    """A name such as `org/repo:Q4_K_M@main`. A GGUF file's path may stand for the quantisation."""

    repo: str
    quant: str | None = None
    revision: str = "main"
    site: str = HUGGING_FACE

    @property
    def written(self) -> str:
        """The repository as a command takes it; for an artifact, with its tag or digest."""
        written = repo_at(self.site, self.repo)
        if self.site != OCI:
            return written
        return f"{written}{'@' if ':' in self.revision else ':'}{self.revision}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `content` names its bytes: their SHA-256, the SHA-1 of a git blob, their MD5, or `etag-`
    and a hash of what an S3-compatible store calls this version of an object."""

    path: str
    num_bytes: int
    content: str
    etag: str = ""
    """As the store gave it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of one model, in shard order, of which the first is named to open it. `quant` is its quantisation, or
    its files' name where that is not enough."""

    quant: str
    files: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return sum(file.num_bytes for file in self.files)


def is_hub_name(text: str) -> bool:
    """Whether the text has the form of a name."""
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
    """Raises ConfigError for text that is no name."""
    if text.startswith(f"{S3}://"):
        return _read_store_name(text)
    if text.startswith(f"{OCI}://"):
        return _read_registry_name(text)
    found = _matched(text)
    if found is None:
        raise ConfigError(
            "model",
            text,
            "expected a file that is here, org/repo:QUANT[@revision] of a hub, s3://bucket/prefix[:QUANT] or "
            "oci://registry/repo:tag",
        )
    site = _SITES[found["site"] or HUGGING_FACE]
    newest = "main" if site == HUGGING_FACE else "master"
    return HubName(found["repo"], found["quant"], found["revision"] or newest, site)


def _read_store_name(text: str) -> HubName:
    """The prefix is a folder. If the name ends in .gguf, it is a file, or the first of one model's."""
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
    """Whether a repository can name a folder, and no part of the text leads out of one."""
    parts = {*repo.split("/"), *(quant or "").split("/")}
    return bool(repo) and text.isprintable() and not parts & {".", ".."} and len(quote(repo, "")) <= _MOST_REPO_BYTES


def repo_at(site: str, repo: str) -> str:
    """A repository with its hub, where that is not the usual one."""
    if site in (S3, OCI):
        return f"{site}://{repo}"
    return repo if site == HUGGING_FACE else f"{site}/{repo}"


FOLDER_PREFIX = "models--"


def repo_folder(site: str, repo: str) -> str:
    """The name of the folder that holds what was fetched of a repository."""
    return FOLDER_PREFIX + (quote(repo, "") if site in (S3, OCI) else repo.replace("/", "--"))


def repo_of_folder(site: str, folder: str) -> str:
    """The inverse of `repo_folder`."""
    name = folder.removeprefix(FOLDER_PREFIX)
    return unquote(name) if site in (S3, OCI) else name.replace("--", "/", 1)


def check_file(repo: str, file: HubFile) -> HubFile:
    """The same file. Raises ModelError for a name, a size or a checksum that no honest hub says."""
    parts = file.path.split("/")
    if not file.path.isprintable() or "\\" in file.path or len(file.path.encode()) > 1000:
        raise ModelError(repo, f"the hub lists a file of the name {shown(file.path)}; it is not fetched")
    if any(part in ("", ".", "..") or len(part.encode()) > 250 for part in parts):
        raise ModelError(repo, f"the hub lists a file outside of its folder, {shown(file.path)}; it is not fetched")
    if not 0 <= file.num_bytes <= _MOST_BYTES:
        raise ModelError(repo, f"{file.path}: the hub says {file.num_bytes} bytes; expected 0 to {_MOST_BYTES}")
    if not _CONTENT.fullmatch(file.content):
        raise ModelError(repo, f"{file.path}: the hub gives no checksum, but {shown(file.content)}")
    return file


def choices(files: Sequence[HubFile]) -> tuple[Choice, ...]:
    """The models among the files, smallest first. A model whose shards are not all there is left out."""
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
    """Whether a file belongs to a model and is none. The names of models may have `imatrix` before a quantization."""
    is_imatrix = _IMATRIX.search(path.stem) is not None and _QUANT.search(path.stem) is None
    return is_imatrix or is_extra_file(path.name)


def choose(name: HubName, found: Sequence[Choice]) -> Choice:
    """The choice that the name stands for. Raises NotFoundError, which lists the choices, where that is not one."""
    if not found:
        raise NotFoundError(
            "model", name.written, "has no GGUF file with all its shards; look for a repository that has"
        )
    if name.quant is None:
        fitting, told = list(found), f"has {len(found)} models"
    else:
        wanted = name.quant.upper()
        fitting = [choice for choice in found if choice.quant.upper() == wanted] or [
            choice for choice in found if any(file.path == name.quant for file in choice.files)
        ]
        told = f"{name.quant} is {'none' if not fitting else f'{len(fitting)}'} of its models"
    if len(fitting) == 1:
        return fitting[0]
    listed = "".join(
        f"\n  {name.written}:{choice.quant}  {human(choice.num_bytes)}  {choice.files[0].path}"
        for choice in found[:100]
    )
    raise NotFoundError("model", name.written, f"{told}; name one:{listed}")


def files_beside(files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """config.json and the tokenizer's files, as far as they are there."""
    return tuple(file for file in files if file.path in _BESIDE and file.num_bytes <= _MOST_BESIDE_BYTES)
