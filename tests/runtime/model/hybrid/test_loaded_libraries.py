"""A server with a GPU does not load any library that the images leave out."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path, PurePath
from urllib.request import Request, urlopen

import pytest

from devkit.servers.process import ServerProcess
from tools.image.trim import NEVER_LOADED

LEFT_OUT = [PurePath(pattern).name for patterns in NEVER_LOADED.values() for pattern in patterns if ".so" in pattern]


def left_out(maps: str) -> list[str]:
    """Files of a process's memory map that images do not contain."""
    names = {PurePath(line.split(maxsplit=5)[-1]).name for line in maps.splitlines() if "/" in line}
    return sorted(name for name in names if any(fnmatch(name, pattern) for pattern in LEFT_OUT))


def test_a_library_in_a_memory_map_is_recognised() -> None:
    line = "7f00-7f01 r-xp 00000000 fe:00 42   /opt/x/site-packages/nvidia/{}\n"
    maps = "".join(line.format(name) for name in ("cudnn/lib/libcudnn.so.9", "cudnn/lib/libcudnn_ops.so.9"))
    assert left_out(maps) == ["libcudnn_ops.so.9"]


@pytest.mark.gpu
def test_a_server_on_a_gpu_loads_only_libraries_of_the_images() -> None:
    with ServerProcess("--device", "cuda") as server:
        body = {"messages": [{"role": "user", "content": "What is 12 + 7? " * 100}], "max_tokens": 20}
        headers = {"Content-Type": "application/json"}
        request = Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=60) as reply:
            assert reply.status == 200
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch_cuda.so" in maps
    assert not left_out(maps)
