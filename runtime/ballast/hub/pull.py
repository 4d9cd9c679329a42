"""`ballast pull`: selects a model, plans from the headers alone, downloads and stores the files."""

from __future__ import annotations

import errno
import fcntl
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from ballast import plan
from ballast.config.options import Config, ModelConfig
from ballast.errors import BallastError, ConfigError
from ballast.host.filesystem import read_file_system
from ballast.host.sizes import human
from ballast.hub.errors import BusyError, FullDiskError, NotFoundError, NotWritableError, UnreachableError
from ballast.hub.naming import Choice, HubFile, HubName, choices, choose, companion_files
from ballast.hub.progress import Progress
from ballast.hub.remote import Hub
from ballast.hub.store import Store
from ballast.plan.described import THIS_MACHINE, Described
from ballast.weights.header import is_whole

_HEADS = (1 << 20, 16 << 20, 64 << 20)
"""Sizes of the requests for a file's beginning, until its header is complete. Larger headers are not read."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without locks. Checksums still detect that two processes wrote the same file."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of resolving a name: a commit, the files of one of its models, configuration and tokenizer files."""

    store: Store
    commit: str
    choice: Choice
    companions: tuple[HubFile, ...]
    others: tuple[Choice, ...] = ()
    """All models of the repository."""
    address: str = ""
    """URL of the commit on the hub; empty for a local copy."""

    @property
    def missing(self) -> tuple[HubFile, ...]:
        """The files that are not downloaded yet."""
        return tuple(file for file in (*self.companions, *self.choice.files) if not self.store.has(self.commit, file))

    def model(self, folder: Path, requested: ModelConfig) -> ModelConfig:
        """The model options for its files in `folder`."""
        has_config = {"config.json", "tokenizer.json"} <= {file.path for file in self.companions}
        model_path = requested.model_path or (folder if has_config else None)
        return replace(requested, gguf_path=folder / self.choice.files[0].path, model_path=model_path)


def find(name: HubName, hub: Hub, out: TextIO) -> Found:
    """Resolve a name on the hub; offline, or if the hub does not answer, in the local store. Raises ConfigError, which
    lists the choices if the name is ambiguous, and ModelError."""
    store = Store(hub.cache, name.repo, name.site)
    if hub.is_offline:
        try:
            kept = _kept(store, name)
        except NotFoundError as error:
            problem = f"HF_HUB_OFFLINE forbids downloads, and among the downloaded models, {error.advice}"
            raise NotFoundError("model", name.written, problem) from error
        if kept is None:
            raise ConfigError(
                "HF_HUB_OFFLINE", "1", f"{name.written} is not downloaded, and HF_HUB_OFFLINE forbids downloads"
            )
        return kept
    try:
        listing = hub.listing(name)
    except UnreachableError as error:
        try:
            kept = _kept(store, name)
        except ConfigError:
            kept = None
        if kept is None:
            raise
        out.write(f"{error}; the copy of an earlier download is used\n")
        return kept
    store.snapshot(listing.commit)
    found = choices(listing.files)
    return Found(store, listing.commit, choose(name, found), companion_files(listing.files), found, listing.address)


def pull(
    name: HubName,
    hub: Hub,
    config: Config | None,
    out: TextIO | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """The model of that name; missing files are downloaded. With a resolved `config` its plan is printed first, and a
    model that does not fit this machine is not downloaded. `on_progress`: is called with the bytes so far and the
    total. Raises ConfigError, ModelError and OutOfMemoryError."""
    out = sys.stderr if out is None else out
    found = find(name, hub, out)
    if found.missing:
        out.write(f"{name.written}:{found.choice.quant} at {found.commit[:12]}: {human(found.choice.num_bytes)}\n")
        if config is not None:
            print_plan(found, hub, config, out=out)
    try:
        if found.missing:
            _fetch(hub, found, Progress(sum(file.num_bytes for file in found.missing), out, on_progress=on_progress))
        found.store.add(found.commit, (*found.companions, *found.choice.files))
        found.store.remember(name.revision, found.commit)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise FullDiskError(f"{hub.cache}: the disk is full ({error.strerror}); {_room(hub)}") from error
        raise NotWritableError(
            hub.api.cache_variable, hub.cache, f"cannot be written ({error.strerror}); choose another folder"
        ) from error
    return found


def print_plan(
    found: Found,
    hub: Hub,
    config: Config,
    *,
    as_json: bool = False,
    out: TextIO | None = None,
    described: Described = THIS_MACHINE,
) -> None:
    """Print the plan of a model from its headers. Raises the errors of `plan.run`."""
    others = [(choice.quant, choice.num_bytes) for choice in found.others]

    def print_from(folder: Path) -> None:
        def named(text: str) -> str:
            """Uses the hub's names, because the folder is temporary."""
            return text.replace(f"{folder}/", f"{found.store.repo}/")

        model, report = replace(config, model=found.model(folder, config.model)), io.StringIO()
        try:
            plan.run(model, as_json=as_json, out=report, described=described, others=others)
        except BallastError as error:
            error.args = (named(str(error)),)
            raise
        finally:  # also if the model is refused
            (sys.stdout if out is None else out).write(named(report.getvalue()))

    if not found.missing:
        folder = found.store.snapshot(found.commit)
        print_from(folder)
        return
    with tempfile.TemporaryDirectory(prefix="ballast-headers-") as temporary:
        folder = Path(temporary)
        for file in found.companions:
            _write_header(folder, file, hub.head(found.store.repo, found.address, file, file.num_bytes))
        for file in found.choice.files:
            for most in _HEADS:
                head = hub.head(found.store.repo, found.address, file, most)
                if is_whole(head):
                    break
            _write_header(folder, file, head)
        print_from(folder)


def _write_header(folder: Path, file: HubFile, head: bytes) -> None:
    """A sparse file of full length with only the first bytes."""
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(file.num_bytes)


def _kept(store: Store, name: HubName) -> Found | None:
    """The local copy of the name; None if there is none. Raises ConfigError as `choose` does.

    A branch may have moved since another quantisation was downloaded: files that the newest commit lacks may be in an
    older one."""
    commit = store.remembered(name.revision)
    if commit is None:
        return None
    failed: ConfigError | None = None
    for each in (commit, *(() if commit == name.revision else store.older_than(commit))):
        files = store.files(each)
        found = choices(files)
        if not found:
            continue
        try:
            return Found(store, each, choose(name, found), companion_files(files))
        except ConfigError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None


def _fetch(hub: Hub, found: Found, progress: Progress) -> None:
    store = found.store
    blobs = store.path / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    with _only_one(store):
        missing = found.missing
        incomplete = [store.blob(file).with_name(f"{file.content}.incomplete") for file in missing]
        there = sum(part.stat().st_size for part in incomplete if part.exists())
        needed = sum(file.num_bytes for file in missing)
        check_room(hub, max(0, needed - there), read_file_system(blobs).free_bytes)
        for file in missing:
            if not store.blob(file).exists():  # two files may have the same content
                hub.fetch(store.repo, found.address, file, store.blob(file), progress)
        progress.end()


@contextmanager
def _only_one(store: Store) -> Iterator[None]:
    """Only one process at a time downloads from a repository. The lock ends with the process."""
    store.lock.parent.mkdir(parents=True, exist_ok=True)
    with store.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                "model", store.repo, "another process is downloading it; wait until that one ends"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield


def check_room(hub: Hub, needed: int, free: int) -> None:
    """Raises FullDiskError if the hub's folder has too little space for the missing files."""
    if needed > free:
        raise FullDiskError(f"{hub.cache}: the download needs {human(needed)} and {human(free)} are free; {_room(hub)}")


def _room(hub: Hub) -> str:
    return f"free some space, or set another folder in {hub.api.cache_variable}"
