"""The volumes of a pod: the model and configuration, read-only, and places to write."""

from __future__ import annotations

from typing import Any

from ballast_operator.api.engine import PlacementRules
from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.sources.pulled_model import PulledSource
from ballast_operator.folders import MODEL_VOLUME, OWN_VOLUMES
from ballast_operator.resources.configmap import RULES_KEY, rules_name

SCRATCH_LIMIT = "8Gi"


def rules_key(rules: PlacementRules) -> str:
    """The rules' file name inside the rules' folder."""
    return rules.config_map_ref.key if rules.config_map_ref is not None else RULES_KEY


def volumes(service: InferenceService) -> list[dict[str, Any]]:
    """The pod's volumes: the operator's own, then those of the spec."""
    return [*(volume for volume, _ in _volumes(service)), *(volume.to_api() for volume in service.spec.volumes)]


def mounts(service: InferenceService) -> list[dict[str, Any]]:
    """The volume mounts of the engine's container."""
    return [*(mount for _, mount in _volumes(service)), *(mount.to_api() for mount in service.spec.volume_mounts)]


def _volumes(service: InferenceService) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    spec = service.spec
    found = [_volume("scratch", {"emptyDir": {"sizeLimit": SCRATCH_LIMIT}}, read_only=False)]
    model = _model(service)
    if model is not None:
        found.append(_volume(MODEL_VOLUME, model, folder=service.cached.folder if service.cached is not None else None))
    if (rules := spec.engine.placement_rules) is not None:
        name = rules_name(service) if rules.config_map_ref is None else rules.config_map_ref.name
        items = [{"key": rules_key(rules), "path": rules_key(rules)}]
        found.append(_volume("rules", {"configMap": {"name": name, "items": items}}))
    if (auth := spec.endpoint.auth) is not None:
        # The directory is mounted, not the file: otherwise a running pod would not see changes of the Secret.
        secret = {
            "secretName": auth.secret_ref.name,
            "items": [{"key": auth.secret_ref.key, "path": auth.secret_ref.key}],
        }
        found.append(_volume("keys", {"secret": secret}))
    if (kernels := spec.kernel_cache) is not None:
        if kernels.host_path is not None:
            source = {"hostPath": {"path": kernels.host_path, "type": "Directory"}}
        else:
            source = {"persistentVolumeClaim": {"claimName": str(kernels.claim_name)}}
        found.append(_volume("kernels", source, read_only=False))
    if (packed := spec.packed_weights) is not None:
        if packed.pvc is not None:
            source = {"persistentVolumeClaim": {"claimName": packed.pvc.claim_name}}
        else:
            # Its pages count against the container's memory limit, so they cannot exceed it.
            source = {"emptyDir": {"medium": "Memory", "sizeLimit": spec.resources.memory}}
        found.append(_volume("packed", source, read_only=False))
    if (kv := spec.kv_disk) is not None:
        source = {"persistentVolumeClaim": {"claimName": kv.claim_name}}
        found.append(_volume("kv", source, read_only=False))
    if spec.resources.hugepages1_gi:
        source = {"emptyDir": {"medium": "HugePages-1Gi"}}
        found.append(_volume("hugepages", source, read_only=False))
    return found


def _model(service: InferenceService) -> dict[str, Any] | None:
    source = service.spec.model.source
    if source.pvc is not None:
        return {"persistentVolumeClaim": {"claimName": source.pvc.claim_name, "readOnly": True}}
    if source.host_path is not None:
        return {"hostPath": {"path": source.host_path.path, "type": "Directory"}}
    if source.image is not None:
        return {"image": source.image.to_api()}
    if source.pulled is not None:
        return pulled_volume(source.pulled, read_only=True)
    return None if service.cached is None else dict(service.cached.volume)


def pulled_volume(source: PulledSource, *, read_only: bool) -> dict[str, Any]:
    """The volume to which models are downloaded."""
    if source.pvc is not None:
        claim = {"claimName": source.pvc.claim_name, **({"readOnly": True} if read_only else {})}
        return {"persistentVolumeClaim": claim}
    assert source.host_path is not None
    return {"hostPath": {"path": source.host_path.path, "type": "Directory"}}


def _volume(
    name: str, source: dict[str, Any], *, read_only: bool = True, folder: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    mount = {
        "name": name,
        "mountPath": OWN_VOLUMES[name],
        **({"subPath": folder} if folder is not None else {}),
        **({"readOnly": True} if read_only else {}),
    }
    return {"name": name, **source}, mount
