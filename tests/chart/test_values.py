"""The chart's values: invalid ones are rejected by name, and valid ones set the right fields."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_operator.cli import _parser
from ballast_operator.version import __version__ as VERSION
from devkit.cluster.helm import CHART, Helm, HelmError
from devkit.cluster.kube import Object
from devkit.manifests import objects_of

MONITORING = (
    "--api-versions=monitoring.coreos.com/v1/PodMonitor",
    "--api-versions=monitoring.coreos.com/v1/PrometheusRule",
)

NOTES_AS_AN_OBJECT = 'notes: {{ include "ballast/templates/NOTES.txt" . | toJson }}'


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [body for body in objects if body["kind"] == kind]


def container(objects: list[Object]) -> Object:
    (deployment,) = of_kind(objects, "Deployment")
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_lint_finds_nothing(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


def node_affinity(**expression: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", **expression}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"repository": "x", "tags": "1"}}, "tags"),
        ({"image": {"digest": "abc"}}, "digest"),
        ({"cpuRuntimeImage": {"tags": "1"}}, "tags"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"rbac": {"scope": "Namespaced"}}, "scope"),
        ({"watchNamespaces": "team-a"}, "watchNamespaces"),
        ({"watchNamespaces": ["Team_A"]}, "watchNamespaces"),
        ({"log": {"level": "trace"}}, "level"),
        ({"resyncSeconds": 0}, "resyncSeconds"),
        ({"tracing": {"endpoint": "collector:4318"}}, "tracing"),
        ({"allowed": {"hostPath": ["/srv"]}}, "hostPath"),
        ({"allowed": {"hostPaths": ["srv"]}}, "hostPaths"),
        ({"allowed": {"env": ["A*B"]}}, "env"),
        ({"allowed": {"nodeSelectors": [{}]}}, "nodeSelectors"),
        ({"monitoring": {"podMonitor": {"interval": 30}}}, "interval"),
        ({"monitoring": {"prometheusRule": {"runbookBaseUrl": "docs"}}}, "runbookBaseUrl"),
        ({"extraEnv": [{"name": "POD_NAME", "value": "x"}]}, "extraEnv"),
        ({"extraEnv": [{"name": "WORKERS", "value": 4}]}, "'/extraEnv/0/value': got number, want null or string"),
        ({"extraEnv": [{"name": "A", "value": "a"}, {"name": "DEBUG", "value": True}]}, "'/extraEnv/1/value'"),
        ({"extraEnv": [{"name": "RATE", "value": 0.5}]}, "'/extraEnv/0/value': got number"),
        ({"extraEnv": [{"name": "LIST", "value": ["a"]}]}, "'/extraEnv/0/value': got array"),
        ({"extraEnv": [{"name": 5, "value": "a"}]}, "'/extraEnv/0/name': got number"),
        ({"extraEnv": [{"name": "A", "valeu": "a"}]}, "valeu"),
        ({"extraEnv": [{"name": "A", "valueFrom": "a"}]}, "'/extraEnv/0/valueFrom': got string"),
        ({"extraEnv": {"A": "a"}}, "'/extraEnv': got object, want array"),
        ({"tolerations": [{"key": "pool", "value": True}]}, "'/tolerations/0/value': got boolean"),
        ({"tolerations": [{"keys": "pool"}]}, "keys"),
        ({"resources": {"limits": {"cpu": True}}}, "'/resources/limits/cpu': got boolean"),
        ({"topologySpreadConstraints": [{"labelSelector": {"matchLabels": {"a": 1}}}]}, "matchLabels/a': got number"),
        (
            {"networkPolicy": {"monitoring": [{"podSelector": {"matchLabels": {"a": True}}}]}},
            "matchLabels/a': got bool",
        ),
        ({"affinity": node_affinity(values=[2])}, "values/0': got number, want string"),
        ({"enabled": "yes"}, "'/enabled': got string, want boolean"),
        ({"serviceAccount": {"name": "Bad Name"}}, "serviceAccount"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels"),
        ({"inferenceServices": [{"name": "x"}]}, "spec"),
        ({"inferenceServices": [{"name": "Deep_Seek", "spec": {}}]}, "name"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_by_name(helm: Helm, tmp_path: Path, wrong: dict[str, Any], named: str) -> None:
    values = tmp_path / "wrong.yaml"
    values.write_text(yaml.safe_dump(wrong))
    with pytest.raises(HelmError, match="values don't meet the specifications of the schema") as refused:
        helm.template("--values", values)
    assert named in str(refused.value)


def test_variables_and_scheduling_are_given_to_the_pod_as_written(helm: Helm, tmp_path: Path) -> None:
    chosen = {
        "extraEnv": [
            {"name": "WORKERS", "value": "4"},
            {"name": "EMPTY", "value": None},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        ],
        "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": 2**31}},
        "affinity": node_affinity(values=["a"]),
        "tolerations": [{"key": "pool", "operator": "Equal", "value": "true", "tolerationSeconds": 30}],
    }
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(chosen))
    objects = helm.template("--values", values)
    only = container(objects)
    assert only["env"][-3:] == chosen["extraEnv"]
    assert only["resources"] == {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": 2**31}}
    pod = of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]
    assert {name: pod[name] for name in ("affinity", "tolerations")} == {
        name: chosen[name] for name in ("affinity", "tolerations")
    }


@pytest.mark.parametrize("alias", [None, "inference"])
def test_a_parent_chart_switches_it_by_a_condition_and_has_global_values(
    helm: Helm, tmp_path: Path, alias: str | None
) -> None:
    name = alias or "ballast"
    parent = tmp_path / "platform"
    shutil.copytree(CHART, parent / "charts" / "ballast")
    needed = {"name": "ballast", "version": VERSION, "condition": f"{name}.enabled"}
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    (parent / "Chart.yaml").write_text(
        yaml.safe_dump({**about, "dependencies": [{**needed, **({"alias": alias} if alias else {})}]})
    )

    def rendered(values: dict[str, Any]) -> list[Object]:
        (parent / "values.yaml").write_text(yaml.safe_dump(values))
        flags = ("--namespace=ballast-system", "--kube-version=1.34.0")
        return objects_of(helm("template", "release", parent, *flags))

    shared = {"global": {"imageRegistry": "registry.test", "storageClass": None, "ballast": {"enabled": True}}}
    plain = rendered({})
    if alias is None:
        assert plain == helm.template("--kube-version=1.34.0", release="release")
    assert of_kind(plain, "Deployment")
    for chosen in ({name: {"enabled": True}}, {name: {"enabled": True}, **shared}):
        assert rendered(chosen) == plain
    assert rendered({name: {"enabled": False}, **shared}) == []
    with pytest.raises(HelmError, match="'/replicas': got string"):
        rendered({name: {"enabled": True, "replicas": "two"}})


def test_the_defaults_run_restricted_with_a_lease_and_no_model(helm: Helm) -> None:
    objects = helm.template()
    assert sorted(body["kind"] for body in objects) == [
        *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "CustomResourceDefinition"),
        *("Deployment", "Lease"),
        *("PodDisruptionBudget",),
        *("Role", "RoleBinding", "ServiceAccount"),
    ]
    only = container(objects)
    assert only["securityContext"]["readOnlyRootFilesystem"] is True
    assert {f"--runtime-image=ballast-runtime:{VERSION}", "--operator-namespace=ballast-system"} <= set(only["args"])
    assert f"--cpu-runtime-image=ballast-runtime:{VERSION}-cpu" in only["args"]
    assert not [word for word in only["args"] if word.startswith("--namespace")]
    for definition in of_kind(objects, "CustomResourceDefinition"):
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_digest_overrides_a_tag_and_crds_can_be_deleted(helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    objects = helm.template(
        "--set", f"image.repository=registry.test/operator,image.digest={digest}", "--set", "crds.keep=false"
    )
    assert container(objects)["image"] == f"registry.test/operator@{digest}"
    definitions = of_kind(objects, "CustomResourceDefinition")
    assert not any("annotations" in definition["metadata"] for definition in definitions)
    assert not of_kind(helm.template("--set", "crds.install=false"), "CustomResourceDefinition")


def test_allow_lists_become_options_of_the_operator(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "lists.yaml"
    lists = {
        "images": ["r.test/team/"],
        "hostPaths": ["/srv/models", "/mnt/a b"],
        "priorityClasses": ["models"],
        "env": ["SITE", "NCCL_*", "*"],
        "mountPaths": ["/app"],
        "sidecarImages": ["r.test/log"],
        "kernelCaches": ["kernels"],
        "nodeSelectors": [{"pool": "models", "zone": "a"}, {"gpu": "yes"}],
    }
    values.write_text(yaml.safe_dump({"allowed": lists}))
    words = container(helm.template("--values", values))["args"]
    assert [word for word in words if word.startswith("--allowed-")] == [
        "--allowed-image=r.test/team/",
        "--allowed-host-path=/srv/models",
        "--allowed-host-path=/mnt/a b",
        "--allowed-priority-class=models",
        "--allowed-env=SITE",
        "--allowed-env=NCCL_*",
        "--allowed-env=*",
        "--allowed-mount-path=/app",
        "--allowed-sidecar-image=r.test/log",
        "--allowed-kernel-cache=kernels",
        "--allowed-node-selector=pool=models,zone=a",
        "--allowed-node-selector=gpu=yes",
    ]
    selectors = _parser().parse_args(words).allowed_node_selector
    assert selectors == lists["nodeSelectors"]


def test_quotas_become_options_that_the_operator_reads(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "quotas.yaml"
    values.write_text(yaml.safe_dump({"quotas": {"team-a": {"gpus": 4, "memory": "2Ti"}, "*": {"pods": 1000000}}}))
    words = container(helm.template("--values", values))["args"]
    read = dict(_parser().parse_args(words).quota)
    assert read == {"team-a": {"gpus": "4", "memory": "2Ti"}, "*": {"pods": "1000000"}}


DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("chosen", "with_gpus", "without"),
    [
        ("runtimeImage.repository=r.test/x,runtimeImage.tag=v2", "r.test/x:v2", "r.test/x:v2-cpu"),
        ("runtimeImage.tag=2-cuda", "ballast-runtime:2-cuda", "ballast-runtime:2-cpu"),
        ("runtimeImage.tag=2-cpu", "ballast-runtime:2-cpu", "ballast-runtime:2-cpu"),
        ("cpuRuntimeImage.tag=v3", f"ballast-runtime:{VERSION}", "ballast-runtime:v3"),
        ("cpuRuntimeImage.repository=r.test/small", f"ballast-runtime:{VERSION}", f"r.test/small:{VERSION}-cpu"),
        (f"runtimeImage.digest={DIGEST}", f"ballast-runtime@{DIGEST}", f"ballast-runtime@{DIGEST}"),
        (f"cpuRuntimeImage.digest={DIGEST}", f"ballast-runtime:{VERSION}", f"ballast-runtime@{DIGEST}"),
    ],
)
def test_services_with_and_without_gpus_have_separate_images(
    helm: Helm, chosen: str, with_gpus: str, without: str
) -> None:
    words = container(helm.template("--set", chosen))["args"]
    assert [word for word in words if "image" in word] == [
        f"--runtime-image={with_gpus}",
        f"--cpu-runtime-image={without}",
    ]


def test_no_role_grants_everything_or_reads_secrets(helm: Helm) -> None:
    for scope in ("Cluster", "Namespace"):
        objects = helm.template("--set", f"rbac.scope={scope}")
        for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role")):
            for rule in role["rules"]:
                words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
                assert not words & {"*", "secrets", "escalate", "bind", "impersonate"}, rule


def test_scoped_to_namespaces_only_nodes_and_leases_are_read_beyond_them(helm: Helm) -> None:
    objects = helm.template("--set", "rbac.scope=Namespace", "--set", "watchNamespaces={team-a,team-b}")
    (everywhere,) = of_kind(objects, "ClusterRole")
    assert [rule["resources"] for rule in everywhere["rules"]] == [["nodes"], ["noderesourcetopologies"], ["leases"]]
    assert {verb for rule in everywhere["rules"] for verb in rule["verbs"]} == {"get", "list"}
    roles = {(role["metadata"]["namespace"], role["metadata"]["name"]) for role in of_kind(objects, "Role")}
    watched = {("team-a", "ballast-operator"), ("team-b", "ballast-operator")}
    assert roles == {*watched, ("ballast-system", "ballast-operator-leader")}
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(container(objects)["args"])
    alone = helm.template("--set", "rbac.scope=Namespace")
    assert "--namespace=ballast-system" in container(alone)["args"]


@pytest.mark.parametrize("scope", ["Cluster", "Namespace"])
def test_releases_of_one_name_in_two_namespaces_share_no_object(helm: Helm, scope: str) -> None:
    def names(namespace: str) -> set[tuple[str, str, str]]:
        # If --namespace is given twice, the last one counts.
        flags = (f"--namespace={namespace}", "--set", f"rbac.scope={scope},crds.install=false")
        found = [(body["kind"], body["metadata"]) for body in helm.template(*flags)]
        return {(kind, metadata.get("namespace", ""), metadata["name"]) for kind, metadata in found}

    first, second = names("team-a"), names("team-b")
    assert len(first) == len(second) >= 7
    assert not first & second
    assert ("ClusterRole", "", "team-a:ballast-operator") in first


@pytest.mark.parametrize("scope", ["Cluster", "Namespace"])
def test_a_binding_names_the_role_and_the_account_of_its_release(helm: Helm, scope: str) -> None:
    objects = helm.template("--set", f"rbac.scope={scope},watchNamespaces={{team-a,team-b}}")
    for kind in ("ClusterRole", "Role"):
        roles = {(body["metadata"].get("namespace"), body["metadata"]["name"]) for body in of_kind(objects, kind)}
        bindings = of_kind(objects, f"{kind}Binding")
        assert roles == {(body["metadata"].get("namespace"), body["roleRef"]["name"]) for body in bindings}
        account = {"kind": "ServiceAccount", "name": "ballast-operator", "namespace": "ballast-system"}
        assert all(body["subjects"] == [account] for body in bindings)


def test_a_model_in_a_namespace_that_is_not_watched_is_refused(helm: Helm, tmp_path: Path) -> None:
    model = {"name": "tiny", "namespace": "team-c", "spec": {}}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"inferenceServices": [model]}))
    assert of_kind(helm.template("--values", values), "InferenceService")
    assert of_kind(helm.template("--values", values, "--set", "watchNamespaces={team-c}"), "InferenceService")
    for unwatched in ("rbac.scope=Namespace", "watchNamespaces={team-a,team-b}"):
        with pytest.raises(HelmError, match="tiny is of the namespace team-c, which the operator does not watch"):
            helm.template("--values", values, "--set", unwatched)


@pytest.mark.parametrize(
    ("known", "version", "is_hook"),
    [([], "v1beta1", True), (["v1alpha1"], "v1alpha1", False), (["v1beta1", "v1alpha1"], "v1beta1", False)],
    ids=["first install", "upgrade from a release without v1beta1", "later upgrade"],
)
def test_a_model_has_a_version_that_the_cluster_knows_before_the_upgrade(
    helm: Helm, tmp_path: Path, known: list[str], version: str, is_hook: bool
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"inferenceServices": [{"name": "tiny", "spec": {}}]}))
    flags = [f"--api-versions=serving.ballast.dev/{each}/InferenceService" for each in known]
    (model,) = of_kind(helm.template("--values", values, *flags), "InferenceService")
    assert model["apiVersion"] == f"serving.ballast.dev/{version}"
    assert ("helm.sh/hook" in model["metadata"]["annotations"]) is is_hook


@pytest.mark.parametrize(
    ("chosen", "namespaces"),
    [
        ("rbac.scope=Cluster", []),
        ("rbac.scope=Namespace", ["ballast-system"]),
        ("rbac.scope=Namespace,watchNamespaces={team-a,team-b}", ["team-a", "team-b"]),
    ],
)
def test_the_next_commands_stay_where_the_operator_looks(
    helm: Helm, tmp_path: Path, chosen: str, namespaces: list[str]
) -> None:
    chart = shutil.copytree(CHART, tmp_path / "ballast")
    (chart / "templates/notes.yaml").write_text(NOTES_AS_AN_OBJECT)  # helm prints notes only with a cluster
    flags = ("--namespace=ballast-system", "--set", chosen, "--show-only=templates/notes.yaml")
    notes = yaml.safe_load(helm("template", "ballast", chart, *flags))["notes"]
    first = f" -n {namespaces[0]}" if namespaces else ""
    assert f"kubectl apply{first} -f -" in notes
    assert f"kubectl wait{first} --for=condition=Ready" in notes
    selections = [f" -n {namespace}" for namespace in namespaces] or [" -A"]
    for command in ("kubectl get bisvc", "kubectl delete bisvc,modelcaches --all"):
        message = [line.strip() for line in notes.splitlines() if line.strip().startswith(command)]
        assert message == [command + selection for selection in selections]


def test_monitoring_is_made_where_its_kinds_are_known(helm: Helm) -> None:
    labels = "monitoring.podMonitor.labels.release=prometheus"
    objects = helm.template(*MONITORING, "--set", labels)
    (monitor,) = of_kind(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert "--pod-monitor-label=release=prometheus" in container(objects)["args"]
    scraper = "monitoring.podMonitor.scraper.podLabels.app=vmagent,monitoring.podMonitor.scraper.namespaces={metrics}"
    arguments = container(helm.template("--set", scraper))["args"]
    assert "--scraper-label=app=vmagent" in arguments
    assert "--scraper-namespace=metrics" in arguments
    off = ("--set", "monitoring.podMonitor.enabled=false,monitoring.prometheusRule.enabled=false")
    assert {body["kind"] for body in helm.template(*MONITORING, *off)} == {body["kind"] for body in helm.template()}


def test_options_of_availability_and_scheduling_reach_the_pod(helm: Helm, tmp_path: Path) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    chosen = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "topologySpreadConstraints": [spread],
        "imagePullSecrets": [{"name": "registry"}],
    }
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({**chosen, "networkPolicy": {"enabled": True}, "replicas": 1}))
    objects = helm.template("--values", values)
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert {key: pod[key] for key in chosen} == chosen
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "ballast-operator"
    assert not of_kind(objects, "PodDisruptionBudget"), "for a single pod it would only block drains"
