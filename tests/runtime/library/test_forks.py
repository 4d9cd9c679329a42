"""A process forked while a model is loaded: using the model in it fails immediately, and the parent continues."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from ballast import LLM

START = """
import asyncio, gc, os, sys
from ballast import LLM, AsyncLLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=3)
CHAT = [{"role": "user", "content": "a"}]

def refusal(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "no error"

def end_of(child):
    _, status = os.waitpid(child, 0)
    print("child:", os.waitstatus_to_exitcode(status), flush=True)
"""

OF_AN_LLM = """
llm = LLM(cache_lens=1024, max_new_tokens=64)
tokenizer = llm.get_tokenizer()
stream = llm.stream("The sum of 3 and 4 is", SamplingParams(max_tokens=8, ignore_eos=True))
next(stream)
parent = os.getpid()
child = os.fork()
if child == 0:
    for call in (
        lambda: llm.generate("a"),
        lambda: llm.generate([]),
        lambda: llm.chat(CHAT),
        lambda: llm.stream("a"),
        lambda: next(stream),
        llm.get_tokenizer,
    ):
        said = refusal(call)
        assert f"this LLM was loaded by process {parent}" in said and "load a new LLM here" in said, said
    assert tokenizer.decode(tokenizer.encode("Hello", add_special_tokens=False)) == "Hello"
    assert "Hello" in tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    llm.close()
    with llm:
        pass
    with LLM(cache_lens=1024, max_new_tokens=64) as own:
        assert own.generate("1 + 1 =", GREEDY)[0].outputs[0].text
    del llm, stream
    gc.collect()
    sys.exit(7)
end_of(child)
assert len(list(stream)) > 1
assert llm.generate("1 + 1 =", GREEDY)[0].outputs[0].text
llm.close()
print("parent: closed", flush=True)
"""

OF_AN_ASYNC_LLM = """
async def first_of(outputs):
    return await anext(outputs)

llm = AsyncLLM(cache_lens=1024, max_new_tokens=64)
child = os.fork()
if child == 0:
    for call in (
        lambda: llm.generate("a"),
        lambda: llm.chat(CHAT),
        lambda: asyncio.run(llm.abort("1")),
        lambda: asyncio.run(llm.get_tokenizer()),
    ):
        assert "this AsyncLLM was loaded by process" in refusal(call), refusal(call)
    llm.shutdown()
    del llm
    gc.collect()
    sys.exit(7)
end_of(child)

async def fork_within_a_reply():
    outputs = llm.generate("a", SamplingParams(max_tokens=60, ignore_eos=True))
    await anext(outputs)
    child = os.fork()
    if child == 0:
        try:
            outputs.asend(None).send(None)
        except RuntimeError as error:
            os._exit(7 if "was loaded by process" in str(error) else 1)
        os._exit(2)
    end_of(child)
    return [output async for output in outputs]

assert asyncio.run(fork_within_a_reply())[-1].finished

async def reply():
    return [output async for output in llm.generate("1 + 1 =", GREEDY)]

assert asyncio.run(reply())[-1].finished
llm.shutdown()
print("parent: closed", flush=True)
"""

WHILE_IT_RUNS = """
import threading
llm = LLM(cache_lens=2048, max_new_tokens=256)
many = threading.Thread(target=lambda: llm.generate(["a"] * 40, SamplingParams(max_tokens=20, ignore_eos=True)))
many.start()
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        sys.exit(7 if "was loaded by process" in refusal(lambda: llm.generate("b")) else 1)
    children.append(child)
for child in children:
    end_of(child)
many.join()
llm.close()
print("parent: closed", flush=True)
"""


def printed(program: str) -> list[str]:
    """Lines printed by a program in a separate process, because this one has other threads."""
    done = subprocess.run(
        [sys.executable, "-c", START + program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def test_a_child_gets_an_error_immediately_and_the_parent_continues() -> None:
    assert printed(OF_AN_LLM) == ["child: 7", "parent: closed"]


def test_a_child_of_an_async_one_gets_an_error_immediately() -> None:
    assert printed(OF_AN_ASYNC_LLM) == ["child: 7", "child: 7", "parent: closed"]


def test_children_forked_while_prompts_run_can_exit() -> None:
    assert printed(WHILE_IT_RUNS) == ["child: 7"] * 5 + ["parent: closed"]


WITH_MULTIPROCESSING = """
import multiprocessing
llm = LLM(cache_lens=1024, max_new_tokens=64)
def ask(prompt):
    return llm.generate(prompt)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print("was loaded by process" in refusal(lambda: pool.map(ask, ["a", "b"])))
llm.close()
"""


def test_a_pool_of_forked_workers_gets_the_error() -> None:
    assert printed(WITH_MULTIPROCESSING) == ["True"]


def test_a_model_is_not_sent_to_another_process(llm: LLM) -> None:
    with pytest.raises(TypeError, match="is a model in this process, and cannot be copied or sent to another"):
        pickle.dumps(llm)
