"""The compiler for flashinfer's kernels: the machine's CUDA toolkit, or one from Python packages."""

from __future__ import annotations

import os
import shutil
import sysconfig
import uuid
from importlib import metadata
from pathlib import Path

USUAL_HOME = Path("/usr/local/cuda")
_DISTRIBUTION = "nvidia-cuda-nvcc"


def has_nvcc() -> bool:
    """Whether a CUDA compiler for flashinfer exists."""
    return _own_home() is not None or (_named_home() is None and packaged_home() is not None)


def has_ninja() -> bool:
    """Whether ninja is in PATH, or next to this Python, where its package installs it."""
    return shutil.which("ninja") is not None or (_scripts() / "ninja").exists()


def packaged_home() -> Path | None:
    """The folder of a CUDA toolkit among the installed packages; None if they contain no nvcc with CUDA's runtime."""
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    homes = [Path(str(file.locate())).parents[1] for file in files if file.match("bin/nvcc")]
    return next((home for home in homes if (home / "bin/nvcc").exists() and _runtime(home) is not None), None)


def use_packaged_tools(links: Path, driver: Path) -> None:
    """Make flashinfer find the toolkit from Python packages, if the machine has none.

    The packages contain libraries under the names that programs load, not under the names that a linker searches. The
    folder `links` gets links with the latter names and is kept, because a kernel is linked again when the path of its
    libraries changes. `driver` is the library of CUDA's driver."""
    if shutil.which("ninja") is None:
        os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), str(_scripts())))
    home = packaged_home()
    if home is None or _named_home() is not None or _own_home() is not None:
        return
    links.mkdir(parents=True, exist_ok=True)
    for name, library in (("libcudart.so", _runtime(home)), ("libcuda.so", driver)):
        assert library is not None
        _link(links / name, library)
    os.environ["CUDA_HOME"] = str(home)
    os.environ["FLASHINFER_EXTRA_LDFLAGS"] = f"-L{links} {os.environ.get('FLASHINFER_EXTRA_LDFLAGS', '')}".strip()


def _named_home() -> str | None:
    """The toolkit set in the environment: flashinfer then does not search elsewhere."""
    return os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")


def _own_home() -> Path | None:
    """The machine's toolkit, found as flashinfer finds it; None if there is none with a compiler."""
    if (named := _named_home()) is not None:
        home = Path(named)
    else:
        found = shutil.which("nvcc")
        home = USUAL_HOME if found is None else Path(found).parent.parent
    return home if (home / "bin/nvcc").exists() else None


def _runtime(home: Path) -> Path | None:
    return next((home / "lib").glob("libcudart.so.*"), None)


def _link(path: Path, target: Path) -> None:
    """Replace `path` atomically: processes of other pods may be using the folder."""
    new = path.with_name(f"{path.name}.{uuid.uuid4()}")
    new.symlink_to(target)
    new.replace(path)


def _scripts() -> Path:
    return Path(sysconfig.get_path("scripts"))
