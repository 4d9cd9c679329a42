"""One table for every validator of cache_lens > max_batch_size * max_new_tokens. tests/cluster tests the API server."""

import re
from pathlib import Path

import pytest
import yaml

from ballast.config.options import read_config
from ballast.config.resolve import resolve
from ballast.errors import ConfigError
from ballast_operator.api.inference_service import InferenceService, SpecError

CASES = yaml.safe_load(Path(__file__).with_name("cache_rule.yaml").read_text())


def operator_refusal(engine):
    body = {
        "metadata": {"name": "x", "namespace": "y"},
        "spec": {"model": {"source": {"builtin": {}}}, "resources": {"cpus": 1, "memory": "1Gi"}, "engine": engine},
    }
    try:
        InferenceService.from_api(body)
    except SpecError as error:
        return str(error)
    return None


def runtime_refusal(engine):
    given = {
        re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name): str(value) for name, value in engine.items()
    }
    try:
        resolve(read_config(given, {}), default_threads=1)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("refusal", [operator_refusal, runtime_refusal])
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["engine"]))
def test_every_judge_of_the_cache_rule_agrees_with_the_table(refusal, case):
    message = refusal(case["engine"])
    assert (message is None) == case["accepted"], message
    if "smallest" in case:
        assert "cache_lens" in message
        assert "max_batch_size" in message
        assert "max_new_tokens" in message
        assert str(case["smallest"]) in message
    if "longest" in case:
        assert "max_new_tokens" in message
        assert str(case["longest"]) in message
        assert "smallest" not in message
        assert str(case["engine"]["maxNewTokens"]) in message
