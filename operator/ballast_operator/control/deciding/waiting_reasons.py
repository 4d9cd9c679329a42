"""Reasons for which a container waits, as the kubelet reports them. Pure."""

from __future__ import annotations

STARTING = ("", "ContainerCreating", "PodInitializing")
"""Reasons that come with every start."""
PULL_FAILURES = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
"""The image cannot be pulled."""
NOT_CREATED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""The container cannot be created or started."""
BACKING_OFF = "CrashLoopBackOff"
"""The container exited and is restarted after a delay."""
