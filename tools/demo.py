"""The README's first command: starts a server with the built-in model, chats once, and shows what to do next."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".demo"
PID_FILE, LOG_FILE = STATE / "server.pid", STATE / "server.log"
PREFERRED_PORT = 10002
READY_TIMEOUT_S = 120
REPLY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 75  # the server itself waits up to 60 s for running requests

CHAT = {
    "messages": [{"role": "user", "content": "hello"}],
    "model": "DeepSeek-R1",
    "temperature": 0.3,
    "top_p": 1.0,
    "stream": True,
}


def main() -> int:
    if sys.argv[1:] == ["stop"]:
        print("Stopped." if stop_server() else "No demo server is running.")
        return 0
    stop_server()
    STATE.mkdir(exist_ok=True)
    port = free_port()
    command = [str(Path(sys.executable).parent / "ballast"), "serve", "--port", str(port), "--max_new_tokens", "64"]
    print(f"$ {shlex.join(['ballast', *command[1:]])}", flush=True)
    with LOG_FILE.open("wb") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
        )
    PID_FILE.write_text(str(server.pid))
    url = f"http://localhost:{port}"
    if not wait_until_ready(server, url):
        print(f"\nThe server did not become ready. Its log, {LOG_FILE}, ends:\n", file=sys.stderr)
        print("\n".join(LOG_FILE.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)
        stop_server()
        return 1

    curl = (
        f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(CHAT))}"
    )
    print(f"$ {curl}\n")
    num_tokens, seconds = stream_reply(url)
    print(
        f"\n\n{num_tokens} tokens in {seconds:.1f} s. The built-in model is tiny and knows little except Ballast; its"
    )
    print("reply used the same server, scheduler and kernels as a real model's.\n")
    print(f"The server keeps running at {url}/v1 (PID {server.pid}).")
    print(f"  page:     {url} in a browser")
    print(f"  chat:     .venv/bin/ballast chat --url {url}/v1")
    print("  again:    the curl above, or use any OpenAI client with this base URL")
    print(f"  metrics:  curl {url}/metrics")
    print(f"  log:      {LOG_FILE.relative_to(ROOT)}")
    print("  stop:     make demo-stop")
    return 0


def free_port() -> int:
    """The usual port, or any free one if it is taken."""
    for port in (PREFERRED_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                print(f"Port {port} is taken; using another.")
                continue
            return int(probe.getsockname()[1])
    raise SystemExit("demo: no free port on 127.0.0.1")


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return True
        time.sleep(0.1)
    return False


def stream_reply(url: str) -> tuple[int, float]:
    """Print the reply as it arrives. Returns the number of pieces and the seconds that it took."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(CHAT | {"stream_options": {"include_usage": True}}).encode(),
        headers={"Content-Type": "application/json"},
    )
    started, num_tokens = time.monotonic(), 0
    with urllib.request.urlopen(request, timeout=REPLY_TIMEOUT_S) as response:
        for line in response:
            data = line.decode().removeprefix("data: ").strip()
            if not data or data == "[DONE]":
                continue
            chunk = json.loads(data)
            if chunk.get("usage"):
                num_tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
    return num_tokens, time.monotonic() - started


def stop_server() -> bool:
    """Stop the server of an earlier demo if it still runs. Returns whether it did."""
    if not PID_FILE.exists():
        return False
    written = PID_FILE.read_text()
    PID_FILE.unlink()
    if not written.isdigit() or not is_our_server(pid := int(written)):
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while is_our_server(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    return True


def is_our_server(pid: int) -> bool:
    """Whether `pid` runs `ballast serve` from this checkout. Process ids are reused."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z" and str(ROOT / ".venv/bin/ballast").encode() in arguments and b"serve" in arguments


if __name__ == "__main__":
    sys.exit(main())
