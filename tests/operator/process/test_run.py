"""Which service an object belongs to."""

from ballast_operator.cluster.kinds import INFERENCE_SERVICE, POD
from ballast_operator.names import API_VERSION, Ref
from ballast_operator.process.run import service_of


def test_an_object_belongs_to_its_service_even_without_its_label():
    metadata = {"namespace": "ns", "name": "x"}
    assert service_of(INFERENCE_SERVICE, {"metadata": metadata}) == Ref("ns", "x")
    assert service_of(POD, {"metadata": {**metadata, "labels": {"serving.ballast.dev/service": "s"}}}) == Ref("ns", "s")
    owner = {"apiVersion": API_VERSION, "kind": "InferenceService", "name": "s", "controller": True}
    assert service_of(POD, {"metadata": {**metadata, "ownerReferences": [owner]}}) == Ref("ns", "s")
    theirs = {**owner, "apiVersion": "serving.kserve.io/v1beta1"}
    assert service_of(POD, {"metadata": {**metadata, "ownerReferences": [theirs]}}) is None
    assert service_of(POD, {"metadata": metadata}) is None
