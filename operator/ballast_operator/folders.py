"""The volumes that the operator gives to a pod, and the folders under which the engine sees them."""

from __future__ import annotations

from collections.abc import Mapping

MODEL_VOLUME = "model"
MODEL_DIRECTORY = "/models"
RULES_DIRECTORY = "/etc/ballast/rules"
KEYS_DIRECTORY = "/etc/ballast/keys"
LOGIN_DIRECTORY = "/etc/ballast/registry"
SCRATCH_DIRECTORY = "/tmp"  # noqa: S108
HUGEPAGES_DIRECTORY = "/dev/hugepages"
KERNELS_DIRECTORY = "/var/cache/ballast"
PACKED_DIRECTORY = "/var/lib/ballast/packed"
KV_DIRECTORY = "/var/lib/ballast/kv"

OWN_VOLUMES: Mapping[str, str] = {
    MODEL_VOLUME: MODEL_DIRECTORY,
    "rules": RULES_DIRECTORY,
    "keys": KEYS_DIRECTORY,
    "scratch": SCRATCH_DIRECTORY,
    "hugepages": HUGEPAGES_DIRECTORY,
    "kernels": KERNELS_DIRECTORY,
    "packed": PACKED_DIRECTORY,
    "kv": KV_DIRECTORY,
}
"""The folder of each volume, by its name. Not every pod has all of them."""


def collides(path: str) -> str | None:
    """The folder that a mount at `path` would cover or be inside of; None if there is none."""
    return next(
        (
            own
            for own in OWN_VOLUMES.values()
            if path == own or path.startswith(f"{own}/") or own.startswith(f"{path}/")
        ),
        None,
    )
