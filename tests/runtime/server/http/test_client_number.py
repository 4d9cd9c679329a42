"""Which requests count as the same client."""

import httpx
import pytest

from ballast.server.http.client_number import client_number, network_of
from ballast.server.lifecycle import PortServer, listen
from ballast.server.limits import ServerLimits


def number_of(address):
    return client_number(network_of({"client": address and (address, 1234)}))


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::1", True),
        ("/run/socket", "/run/socket", True),
        (None, None, True),
    ],
)
def test_an_address_is_a_client_and_so_is_a_network_of_ipv6(address, other, is_same):
    assert (number_of(address) == number_of(other)) is is_same


def test_a_number_fits_in_the_schedulers_64_bits():
    assert all(-(2**63) <= client_number(bytes([n])) < 2**63 for n in range(256))
    assert len({client_number(bytes([n])) for n in range(256)}) == 256


async def test_clients_cannot_forge_their_address():
    """This includes clients on this machine, which uvicorn trusts by default."""
    seen = []

    async def app(scope, _receive, send):
        seen.append(network_of(scope))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    listener = listen("127.0.0.1", 0)
    server = PortServer(app, listener, ServerLimits(), None)
    async with httpx.AsyncClient() as client:
        headers = {"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.7"}
        await client.get(f"http://127.0.0.1:{server.port}/", headers=headers)
    server.http.stop()
    await server.serving
    assert seen == [bytes((127, 0, 0, 1))]
