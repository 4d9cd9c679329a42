"""Requirements of the operator's caches on `ballast`: a pull stores a model in its folder, an engine that has only this
folder finds it, and a removal deletes all of it."""

import os
from contextlib import contextmanager
from dataclasses import replace

import pytest
from builders import FIRST, service
from caching import model_cache

from ballast.hub.naming import read_name
from ballast_operator.child_options import ChildOptions
from ballast_operator.folders import MODEL_DIRECTORY
from ballast_operator.resources.pod import build_pod
from ballast_operator.resources.pulling.cache_job import build_cache_pull, build_removal, folder_of, found_model
from ballast_operator.resources.pulling.source import REPORT
from devkit.models.written import write_tiny_model
from devkit.servers.command import ballast
from devkit.stores.hub_server import hub_server
from devkit.stores.oci_registry import TITLE, oci_registry
from devkit.stores.s3_server import s3_server

OPTIONS = ChildOptions()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("weights"), arch="v3", quant="q8_0").gguf.read_bytes()


def run(tmp_path, words, env, models):
    """Run a container's command. `models`: the folder that is mounted as the models' folder."""

    def outside(text):
        return text.replace(MODEL_DIRECTORY, str(models), 1) if text.startswith(MODEL_DIRECTORY) else text

    fixed = {REPORT: str(tmp_path / "said"), "10003": "0"}  # another test may use that port
    words = [fixed.get(word, outside(word)) for word in words]
    given = {one["name"]: outside(one["value"]) for one in env if "value" in one}
    return ballast(words, {**os.environ, **given, "HOME": str(tmp_path)})


def container_of(job):
    [container] = job["spec"]["template"]["spec"]["containers"]
    return container["args"], container["env"]


def scope(**more):
    hub = {"repo": "org/tiny", "quant": "Q8_0", **more}
    return {"name": "tiny", "size": "1Gi", "source": {"modelScope": hub}}


@contextmanager
def source_of(kind, tmp_path, weights):
    """The model's source in a ModelCache, and variables that make it reachable from the pull pod here."""
    files = {"tiny-Q8_0.gguf": weights}
    if kind == "s3":
        with s3_server(tmp_path / "store") as store:
            store.fill("models", {f"a/{name}": body for name, body in files.items()})
            store.open_to_all("models")
            yield {"bucket": "models", "prefix": "a", "endpoint": store.endpoint}, {}
    elif kind == "oci":
        with oci_registry(tmp_path / "registry") as registry:
            registry.push("a/tiny", "v1", [("application/octet-stream", weights, {TITLE: "tiny-Q8_0.gguf"})])
            yield {"reference": f"{registry.host}/a/tiny:v1"}, {}
    else:
        with hub_server(files) as (_, endpoint):
            here = {"endpoint": endpoint} if kind == "huggingFace" else {}
            yield {"repo": "org/tiny", "quant": "Q8_0", **here}, {"MODELSCOPE_DOMAIN": endpoint}


@pytest.mark.parametrize("kind", ["huggingFace", "modelScope", "s3", "oci"])
def test_an_engine_finds_pulled_models_and_a_removal_deletes_everything(tmp_path, weights, kind):
    disk = tmp_path / "disk"
    disk.mkdir()
    with source_of(kind, tmp_path, weights) as (source, variables):
        cache = model_cache({"name": "tiny", "size": "1Gi", "source": {kind: source}})
        [model] = cache.spec.models
        words, env = container_of(build_cache_pull(cache, model, "n1", OPTIONS))
        env = [*env, *({"name": name, "value": value} for name, value in variables.items())]
        pulled = run(tmp_path, words, env, disk)
        assert pulled.returncode == 0, pulled.stderr
    folder = folder_of(cache, model)
    assert [path.name for path in disk.iterdir()] == [folder]

    one = replace(
        service(model={"source": {"cache": {"name": "models", "model": "tiny"}}}),
        cached=found_model(cache, model, ("n1",)),
    )
    [engine] = build_pod(one, OPTIONS, FIRST)["spec"]["containers"]
    words = ["plan", engine["args"][1], "--device", "cpu", "--memory_bandwidth", "46GB/s"]
    planned = run(tmp_path, words, engine["env"], disk / folder)
    assert "It fits." in planned.stdout, planned.stderr

    for _ in range(2):
        words, env = container_of(build_removal(cache, "n1", folder, "tiny", "1Gi", OPTIONS))
        removed = run(tmp_path, words, env, disk)
        assert removed.returncode == 0, removed.stderr
        assert [*disk.iterdir()] == []


@pytest.mark.parametrize("more", [{}, {"site": "modelscope.ai"}, {"revision": "v1"}])
def test_names_of_models_are_read_as_they_are_meant(more):
    [model] = model_cache(scope(**more)).spec.models
    name = read_name(model.source.model.name)
    assert (name.repo, name.quant) == ("org/tiny", "Q8_0")
    assert name.site == more.get("site", "modelscope.cn")
    assert name.revision == more.get("revision", "master")
