"""The Helm chart as a package with the same bytes for the same commit."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

TIMEOUT_S = 120


def package_chart(helm: Path, chart: Path, folder: Path, epoch: int) -> Path:
    """Package `chart` into `folder`. Every file of the package gets the time `epoch`."""
    with tempfile.TemporaryDirectory(prefix="ballast-chart-") as name:
        command = [str(helm), "package", str(chart), "--destination", name]
        subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        (packed,) = Path(name).glob("*.tgz")
        target = folder / packed.name
        target.write_bytes(_with_time(packed, epoch))
    return target


def _with_time(package: Path, epoch: int) -> bytes:
    packed = io.BytesIO()
    with (
        tarfile.open(package) as old,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            content = old.extractfile(member)
            if content is None:
                raise ValueError(f"{package.name}: {member.name} is not a file")
            entry = tarfile.TarInfo(member.name)
            entry.size, entry.mode, entry.mtime = member.size, 0o644, epoch
            new.addfile(entry, content)
    return packed.getvalue()
