"""Which services and ModelCaches an event concerns."""

from ballast_operator.cluster.kinds import INFERENCE_SERVICE, MODEL_CACHE, POD
from ballast_operator.names import API_VERSION, Ref
from ballast_operator.process.event_targets import CacheUsers, service_of

MODELS, OTHERS = Ref("ns", "models"), Ref("ns", "others")


def service(source, **metadata):
    return {"metadata": {"name": "s", "namespace": "ns", **metadata}, "spec": {"model": {"source": source}}}


def cached(name, model="tiny"):
    return {"cache": {"name": name, "model": model}}


def concerned(users, source, *, gone=False, **metadata):
    return set(users.caches_of(INFERENCE_SERVICE, service(source, **metadata), gone=gone))


def test_an_object_belongs_to_its_service_even_without_its_label():
    metadata = {"namespace": "ns", "name": "x"}
    assert service_of(INFERENCE_SERVICE, {"metadata": metadata}) == Ref("ns", "x")
    assert service_of(POD, {"metadata": {**metadata, "labels": {"serving.ballast.dev/service": "s"}}}) == Ref("ns", "s")
    owner = {"apiVersion": API_VERSION, "kind": "InferenceService", "name": "s", "controller": True}
    assert service_of(POD, {"metadata": {**metadata, "ownerReferences": [owner]}}) == Ref("ns", "s")
    theirs = {**owner, "apiVersion": "serving.kserve.io/v1beta1"}
    assert service_of(POD, {"metadata": {**metadata, "ownerReferences": [theirs]}}) is None
    assert service_of(POD, {"metadata": metadata}) is None


def test_an_event_of_a_cache_concerns_that_cache():
    body = {"metadata": {"name": "models", "namespace": "ns"}}
    for gone in (False, True):
        assert set(CacheUsers().caches_of(MODEL_CACHE, body, gone=gone)) == {MODELS}


def test_an_event_of_another_object_concerns_no_cache():
    body = {"metadata": {"name": "s-0", "namespace": "ns"}, "spec": service(cached("models"))["spec"]}
    assert set(CacheUsers().caches_of(POD, body, gone=False)) == set()
    assert concerned(CacheUsers(), {"builtin": {}}) == set()
    assert set(CacheUsers().caches_of(INFERENCE_SERVICE, {"metadata": body["metadata"]}, gone=False)) == set()


def test_a_service_concerns_caches_only_if_its_model_changes():
    users = CacheUsers()
    assert concerned(users, cached("models")) == {MODELS}
    assert concerned(users, cached("models"), resourceVersion="2") == set()
    assert concerned(users, cached("models", "large")) == {MODELS}
    assert concerned(users, cached("others")) == {MODELS, OTHERS}
    assert concerned(users, {"builtin": {}}) == {OTHERS}
    assert concerned(users, {"builtin": {}}) == set()


def test_a_service_that_is_deleted_concerns_its_cache_once():
    users = CacheUsers()
    concerned(users, cached("models"))
    assert concerned(users, cached("models"), deletionTimestamp="2026-01-01T00:00:00Z") == {MODELS}
    assert concerned(users, cached("models"), gone=True) == set()
    assert concerned(users, cached("models")) == {MODELS}
    assert concerned(users, cached("models"), gone=True) == {MODELS}


def test_every_cache_is_reconciled_again_after_the_watches_restart():
    users = CacheUsers()
    concerned(users, cached("models"))
    users.clear()
    assert concerned(users, cached("models")) == {MODELS}
