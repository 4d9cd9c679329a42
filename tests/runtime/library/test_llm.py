"""The library produces the same replies as the server, with the built-in model."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ballast import LLM, SamplingParams
from ballast.errors import CapacityError, ConfigError, RequestError
from devkit.servers.process import ServerProcess

GREEDY = SamplingParams(temperature=0, max_tokens=3)


def test_a_thousand_prompts_in_one_call_get_the_servers_replies(llm):
    prompts = [f"What is {n} + {n % 7}?" for n in range(1000)]
    found = [output.outputs[0].text for output in llm.generate(prompts, GREEDY)]
    body = {"temperature": 0, "max_tokens": 3}
    with ServerProcess("--cache_lens", "4096", "--max_new_tokens", "128", "--max_batch_size", "16") as server:
        served = []
        for start in range(0, 1000, 125):
            requested = {**body, "prompt": prompts[start : start + 125]}
            choices = httpx.post(f"{server.url}/v1/completions", json=requested, timeout=120).json()["choices"]
            served += [choice["text"] for choice in choices]
    assert found == served
    assert len(set(found)) > 50


def test_chat_returns_content_and_token_counts(llm):
    requested = [{"role": "user", "content": "What is 12 + 7?"}]
    one = llm.chat(requested, SamplingParams(temperature=0, max_tokens=40))
    assert "19" in one[0].outputs[0].text
    assert one[0].outputs[0].finish_reason == "stop"
    two = llm.chat([requested, requested], SamplingParams(temperature=0, max_tokens=40))
    assert [each.outputs[0].text for each in two] == [one[0].outputs[0].text] * 2


def test_a_stream_is_the_whole_reply_in_pieces(llm):
    whole = llm.generate("The sum of 3 and 4 is", SamplingParams(seed=3, max_tokens=12))[0].outputs[0]
    pieces = list(llm.stream("The sum of 3 and 4 is", SamplingParams(seed=3, max_tokens=12)))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum((piece.token_ids for piece in pieces), ()) == whole.token_ids
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [whole.finish_reason]
    assert len(pieces) > 1


def test_leaving_a_stream_frees_its_slot(llm):
    for _ in range(3):
        for _ in llm.stream([{"role": "user", "content": "Hello"}], SamplingParams(n=128, ignore_eos=True)):
            break
    assert llm.generate("1 + 1 =", GREEDY)[0].outputs[0].text


def test_token_ids_are_accepted_as_prompts_and_n_replies_have_different_seeds(llm):
    ids = llm.generate("What is 2 + 2?", GREEDY)[0].prompt_token_ids
    params = SamplingParams(n=3, seed=5, temperature=5, max_tokens=8, logprobs=2, ignore_eos=True)
    (output,) = llm.generate([ids], params)
    assert output.prompt_token_ids == ids
    assert [each.index for each in output.outputs] == [0, 1, 2]
    assert len({each.token_ids for each in output.outputs}) > 1
    for each in output.outputs:
        assert [token in scores for token, scores in zip(each.token_ids, each.logprobs, strict=True)] == [True] * 8
    assert llm.generate(ids, params)[0].outputs == output.outputs


def test_parameters_that_the_server_rejects_are_rejected_by_name(llm):
    with pytest.raises(RequestError, match="temperature"):
        llm.generate(["a", "b"], SamplingParams(temperature=9))
    with pytest.raises(RequestError, match="maximum context length"):
        llm.generate("a " * 100_000)
    with pytest.raises(ValueError, match="3 for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY] * 3)
    assert len(llm.generate(["a", "b"], GREEDY)) == 2


def test_threads_share_the_batch(llm):
    alone = llm.generate("5 + 5 =", GREEDY)[0].outputs[0].text
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: llm.generate("5 + 5 =", GREEDY)[0].outputs[0].text, range(8)))
    assert found == [alone] * 8


def test_options_are_the_command_line_options_without_server_options():
    with pytest.raises(ConfigError, match="port=1: is an option of the HTTP server"):
        LLM(port=1)
    with pytest.raises(ConfigError, match="max_queue=8: is an option for servers with several clients"):
        LLM(max_queue=8)
    with pytest.raises(ConfigError, match="no such option"):
        LLM(tensor_parallel=2)
    with pytest.raises(ConfigError, match="no such file"):
        LLM("/nowhere/model.gguf")


def test_using_a_closed_one_reports_that():
    llm = LLM(cache_lens=1024, max_new_tokens=16)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("a")


def test_a_call_that_runs_when_it_is_closed_fails():
    llm = LLM(cache_lens=2048, max_new_tokens=128)
    one_is_done = threading.Event()

    class Bar(contextlib.nullcontext):
        def update(self, count):
            one_is_done.set()

    with ThreadPoolExecutor(1) as pool:
        params = SamplingParams(max_tokens=120, ignore_eos=True)
        running = pool.submit(llm.generate, ["a"] * 500, params, use_tqdm=lambda **options: Bar(Bar()))
        assert one_is_done.wait(60)
        llm.close()
        with pytest.raises(CapacityError, match="this LLM was closed while the request ran"):
            running.result(60)


def test_the_package_itself_imports_nothing():
    loaded = "import sys, ballast; assert 'numpy' not in sys.modules; print(ballast.__version__)"
    subprocess.run([sys.executable, "-c", loaded], check=True, timeout=60)


WITHOUT_TORCH = """
import sys
sys.modules.update(torch=None, triton=None)
import ballast.server.serve_command
from ballast import LLM, SamplingParams
with LLM() as llm:
    print(llm.generate("The sum of 3 and 4 is", SamplingParams(temperature=0, max_tokens=3))[0].outputs[0].text)
"""


def test_a_cpu_needs_no_torch(llm):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == llm.generate("The sum of 3 and 4 is", GREEDY)[0].outputs[0].text.strip()
