"""`python -m ballast_operator`, and the command `ballast-operator`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_PACKAGES = frozenset({"aiohttp", "kopf", "kubernetes", "prometheus_client", "pydantic", "yaml"})
"""The packages of the extra `operator`."""
EXIT_NOT_INSTALLED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. A missing package is reported in one sentence."""
    try:
        from ballast_operator import cli

        return cli.main(argv)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        sys.stderr.write(
            f"ballast-operator: the package {package} is not installed; "
            "run `make setup` in the clone, or install the wheel with its extra: WHEEL[operator]\n"
        )
        return EXIT_NOT_INSTALLED


if __name__ == "__main__":
    sys.exit(main())
