"""Runs the check of a JavaScript library against two servers."""

import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from devkit.servers.process import ServerProcess

HERE = Path(__file__).parent
TEMPLATE = ("--chat_template", "deepseek-v3.1")
SCRIPT = ("devkit.servers.script_server",)
TIMEOUT_S = 120


def check(folder: Path, script: str, ignored: Collection[str] = ()) -> None:
    """Run `script` with the packages of `folder`. Its arguments are the URLs of two servers: one with the built-in
    model, which follows grammars but does not act as an agent, and one whose model follows a script. The server may
    ignore only the fields in `ignored`."""
    copy = folder / script  # packages are resolved relative to the file
    shutil.copyfile(HERE / script, copy)
    with (
        ServerProcess(*TEMPLATE, "--max_batch_size", "8") as built_in,
        ServerProcess(*TEMPLATE, module=SCRIPT) as scripted,
    ):
        subprocess.run(["node", str(copy), built_in.url, scripted.url], timeout=TIMEOUT_S, check=True)
        for server in (built_in, scripted):
            server.wait_until_empty()
            requests = [event for event in server.events if event["event"] == "request"]
            failed = [request for request in requests if request["status"] >= 500]
            assert not failed, failed
            assert {request.get("ignored_fields") for request in requests} <= {None, *ignored}, requests
