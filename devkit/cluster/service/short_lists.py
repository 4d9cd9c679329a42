"""Shortest valid items for every list of objects in a spec: only required fields, defaults omitted."""

from __future__ import annotations

from devkit.cluster.kube import Object

SHORT_LISTS: Object = {
    "imagePullSecrets": [{"name": "registry"}],
    "scheduling": {
        "tolerations": [{"key": "pool", "value": "models"}],
        "topologySpreadConstraints": [
            {"topologyKey": "zone"},
            {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        ],
    },
    "resources": {"cpus": 1, "memory": "1Gi", "gpus": 0, "claims": [{"name": "a", "resourceClaimName": "b"}]},
    "endpoint": {
        "networkPolicy": {"clients": [{"podLabels": {"app": "a"}}]},
        "route": {"gateways": [{"name": "a"}], "hostnames": ["a.test"], "canary": {"service": "b"}},
    },
    "env": [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
    ],
    "envFrom": [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "a"}}],
    "volumes": [
        {"name": "a", "persistentVolumeClaim": {"claimName": "a"}},
        {"name": "b", "configMap": {"name": "a"}},
        {"name": "c", "secret": {"secretName": "a"}},
        {"name": "d", "hostPath": {"path": "/srv"}},
        {"name": "e", "csi": {"driver": "a"}},
        {"name": "f", "emptyDir": {"sizeLimit": "1Gi"}},
    ],
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
    "sidecars": [
        {"name": "plain", "image": "x", "cpu": "1", "memory": "1Gi"},
        {
            "name": "full",
            "image": "x",
            "cpu": "1",
            "memory": "1Gi",
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
            "envFrom": [{"configMapRef": {"name": "a"}}],
            "volumeMounts": [{"name": "a", "mountPath": "/a"}],
        },
    ],
}
