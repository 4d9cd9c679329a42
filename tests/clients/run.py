"""Runs the checks of one client in its environment: run.py NAME BUILT_IN_URL SCRIPTED_URL PLAIN_URL

check_NAME.py has one function per check: check_stream, check_tools and so on. A function takes an API if APIS, the APIs
that the client supports, has several. The page of tested clients is generated from these names.
"""

import asyncio
import errno
import importlib
import inspect
import ipaddress
import logging
import sys

blocked = set()
"""Hosts that the client tried to reach."""


def refuse_other_machines(event, arguments):
    """An audit hook that sees every connection that a client library opens."""
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if not is_loopback(host):
        blocked.add(host)
        raise OSError(errno.ENETUNREACH, f"client checks may connect only to loopback, not to {host}")


def is_loopback(host):
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    logging.disable()  # hides expected errors
    sys.addaudithook(refuse_other_machines)
    module = importlib.import_module(f"check_{sys.argv[1]}")
    checks = {name: check for name, check in vars(module).items() if name.startswith("check_") and callable(check)}
    with asyncio.Runner() as loop:
        for check in checks.values():
            for arguments in [(api,) for api in module.APIS] if inspect.signature(check).parameters else [()]:
                done = check(*arguments)
                if inspect.iscoroutine(done):
                    loop.run(done)
    assert not blocked, f"{sys.argv[1]} wanted to reach {', '.join(sorted(blocked))}"
    tried = ", ".join(name.removeprefix("check_").replace("_", " ") for name in checks)
    print(f"{sys.argv[1]}: {tried}", flush=True)
