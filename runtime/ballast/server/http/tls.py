"""TLS for the API's port. The certificate may be renewed while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from ballast.errors import ConfigError
from ballast.server.http.watched_file import WatchedFile

RENEWAL_S = 60.0
"""How often a running server checks for a new certificate."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The context of all handshakes, and the certificate file that it is loaded from."""

    context: ssl.SSLContext
    certificate: WatchedFile[None]

    @classmethod
    def load(cls, cert_file: Path, key_file: Path) -> Tls:
        """Load a certificate with its chain, and the key. Raises ConfigError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

        def read(path: Path) -> None:
            # Load into a temporary context first, so that a mismatched pair never reaches the one in use.
            _load_pair(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), path, key_file)
            _load_pair(context, path, key_file)

        for option, path in (("tls_key_file", key_file), ("tls_cert_file", cert_file)):
            try:
                with path.open("rb"):
                    pass
            except OSError as error:
                raise ConfigError(option, path, f"cannot be read: {error.strerror}") from None
            if not path.is_file():
                raise ConfigError(option, path, "is not a regular file")
        try:
            return cls(context, WatchedFile(cert_file, read, max_age_s=RENEWAL_S))
        except (OSError, ValueError) as error:
            raise ConfigError("tls_cert_file", cert_file, str(error)) from None

    @contextlib.asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Check for a new certificate periodically until the block ends."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(RENEWAL_S)
                await self.certificate.value()

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()


def _load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    def no_password() -> str:
        raise ValueError(f"the key in {key_file} is encrypted; use an unencrypted key")

    try:
        context.load_cert_chain(cert_file, key_file, no_password)
    except ssl.SSLError as error:
        raise ValueError(
            f"with the key in {key_file}, not a certificate and key in PEM form that belong together: {error.reason}"
        ) from None
