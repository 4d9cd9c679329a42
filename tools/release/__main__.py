"""Builds a release into build/release/VERSION, or changes the version.

    python -m tools.release build [PART ...]     notes, chart, wheel, images and sbom; all without PART
    python -m tools.release bump VERSION         writes the version into every file that states it

`build` rejects a commit that is not ready, and finally writes the checksums of everything in the folder. Parts may
be built one after the other, and on several machines, from the same commit. `build checksums` only writes checksums.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.release.checksums import NAME, artifacts, write_checksums
from tools.release.parts import PARTS, MissingArtifactError, OtherCommitError
from tools.release.source import Source, problems, source_of
from tools.release.version import VersionError, bump

ROOT = Path(__file__).resolve().parents[2]
CHECKSUMS = "checksums"
COMMIT = "COMMIT"
"""The file of a release's folder that names the commit."""


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description="Build a release.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build artifacts into build/release/VERSION")
    build.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} or {CHECKSUMS} (default: all)")
    raised = commands.add_parser("bump", help="write a version into every file that states it")
    raised.add_argument("version", metavar="VERSION", help="MAJOR.MINOR.PATCH")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "bump":
            print("\n".join(bump(root, chosen.version)))
            return 0
        return _build(root, chosen.parts or list(PARTS))
    except (MissingArtifactError, OtherCommitError, VersionError, subprocess.TimeoutExpired) as error:
        return _refused([str(error)])
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        return _refused([f"`{command}` ended with exit code {error.returncode}", *(error.stderr or "").splitlines()])


def _build(root: Path, parts: Sequence[str]) -> int:
    unknown = [part for part in parts if part not in (*PARTS, CHECKSUMS)]
    if unknown:
        return _refused([f"part {part}: unknown; parts are {', '.join(PARTS)} and {CHECKSUMS}" for part in unknown])
    source = source_of(root)
    found = [*problems(source), *_other_commit(source)]
    if found:
        return _refused(found)
    source.folder.mkdir(parents=True, exist_ok=True)
    (source.folder / COMMIT).write_text(f"{source.commit}\n", encoding="utf-8")
    (source.folder / NAME).unlink(missing_ok=True)
    for part, write in PARTS.items():
        if part in parts:
            print(f"release: {part}", flush=True)
            write(source)
    write_checksums(source.folder)
    print(f"release: {source.folder.relative_to(root)}")
    for path in artifacts(source.folder):
        print(f"{path.stat().st_size:>14,}  {path.name}")
    return 0


def _other_commit(source: Source) -> list[str]:
    """Artifacts of different commits are never mixed."""
    path = source.folder / COMMIT
    if not path.exists() or path.read_text(encoding="utf-8").strip() == source.commit:
        return []
    other = path.read_text(encoding="utf-8").strip()[:12]
    return [f"{source.folder.relative_to(source.root)} has artifacts of commit {other}; remove the folder"]


def _refused(reasons: Sequence[str]) -> int:
    for reason in reasons:
        print(f"release: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
