"""Which ModelCache an event concerns."""

import pytest

from ballast_operator.cluster.kinds import INFERENCE_SERVICE, MODEL_CACHE, POD
from ballast_operator.names import Ref
from ballast_operator.process.run import cache_of

NAMED = {"model": {"source": {"cache": {"name": "models", "model": "tiny"}}}}


@pytest.mark.parametrize(
    ("kind", "name", "spec", "found"),
    [
        (MODEL_CACHE, "models", {}, Ref("ns", "models")),
        (INFERENCE_SERVICE, "s", NAMED, Ref("ns", "models")),
        (INFERENCE_SERVICE, "s", {"model": {"source": {"builtin": {}}}}, None),
        (INFERENCE_SERVICE, "s", {}, None),
        (POD, "s-0", {}, None),
    ],
)
def test_an_event_of_a_cache_or_of_a_service_that_names_it(kind, name, spec, found):
    assert cache_of(kind, {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}) == found
