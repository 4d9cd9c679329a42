"""The numbers in /debug/state."""

import json

from devkit.servers.process import FAKE, ServerProcess


def test_the_costs_of_steps_are_shown_for_each_lane():
    with ServerProcess("--step_s", "0.02", "--max_queue_wait_s", "100", module=FAKE) as server:
        costs = json.loads(server.get("/debug/state")[2])["step_costs"]
    assert costs.keys() == {"decode", "decode_in_pass", "prefill", "prefill_during_decode"}
    assert costs["prefill"] == costs["prefill_during_decode"] == [], "there is no prefill lane without a GPU"
    for alone, in_pass in zip(costs["decode"], costs["decode_in_pass"], strict=True):
        assert alone["tokens"] == in_pass["tokens"]
        assert 0.02 <= alone["seconds"] <= in_pass["seconds"]


def test_unmeasured_steps_have_no_costs():
    with ServerProcess(module=FAKE) as server:
        costs = json.loads(server.get("/debug/state")[2])["step_costs"]
    assert set(map(tuple, costs.values())) == {()}
