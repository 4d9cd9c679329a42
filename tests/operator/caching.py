"""ModelCaches for tests of pure decisions."""

from ballast_operator.api.model_cache import ModelCache

CACHE_UID = "cache-uid"


def cached(name="tiny", size="60Gi", **hub):
    return {
        "name": name,
        "size": size,
        "source": {"huggingFace": {"repo": f"org/{name}", "quant": "Q8_0", **hub}},
    }


def cache_body(*models, deleting=False, **spec):
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    return {
        "apiVersion": "serving.ballast.dev/v1beta1",
        "kind": "ModelCache",
        "metadata": {"name": "models", "namespace": "ns", "uid": CACHE_UID, "generation": 2, **gone},
        "spec": {
            "storage": {"hostPath": {"path": "/srv/models"}},
            "capacity": "100Gi",
            "models": list(models),
            **spec,
        },
    }


def model_cache(*models, **spec):
    return ModelCache.from_api(cache_body(*models, **spec))
