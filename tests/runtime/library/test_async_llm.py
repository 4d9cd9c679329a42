"""`AsyncLLM`: replies as async generators."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ballast import LLM, AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from ballast.errors import CapacityError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=3)
LONG = SamplingParams(max_tokens=120, ignore_eos=True, seed=1)
DELTA = RequestOutputKind.DELTA


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    loaded = AsyncLLM(max_num_seqs=4, cache_lens=4096, max_new_tokens=128)
    yield loaded
    loaded.shutdown()


async def all_of(outputs: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in outputs]


def last(engine: AsyncLLM, prompt: Any, params: SamplingParams = GREEDY) -> RequestOutput:
    return asyncio.run(all_of(engine.generate(prompt, params)))[-1]


def test_async_replies_match_the_synchronous_class(engine: AsyncLLM, llm: LLM) -> None:
    prompts = [f"What is {n} + {n % 7}?" for n in range(300)]

    async def ask() -> list[list[RequestOutput]]:
        return await asyncio.gather(*(all_of(engine.generate(prompt, GREEDY)) for prompt in prompts))

    found = [outputs[-1].outputs[0].text for outputs in asyncio.run(ask())]
    assert found == [output.outputs[0].text for output in llm.generate(prompts, GREEDY)]


def test_outputs_are_cumulative_delta_or_final_only(engine: AsyncLLM) -> None:
    params = SamplingParams(seed=3, max_tokens=12, ignore_eos=True, logprobs=1)
    kinds = {}
    for kind in RequestOutputKind:
        params.output_kind = kind
        kinds[kind] = asyncio.run(all_of(engine.generate("The sum of 3 and 4 is", params.clone())))
    (final,) = kinds[RequestOutputKind.FINAL_ONLY]
    growing, pieces = kinds[RequestOutputKind.CUMULATIVE], kinds[DELTA]
    assert growing[-1].outputs == final.outputs
    assert [output.finished for output in growing] == [False] * (len(growing) - 1) + [True]
    for before, after in itertools.pairwise(growing):
        assert after.outputs[0].text.startswith(before.outputs[0].text)
        assert after.outputs[0].token_ids[: len(before.outputs[0].token_ids)] == before.outputs[0].token_ids
    assert len(pieces) == len(growing) > 1
    assert "".join(output.outputs[0].text for output in pieces) == final.outputs[0].text
    assert sum((output.outputs[0].token_ids for output in pieces), ()) == final.outputs[0].token_ids
    assert sum((output.outputs[0].logprobs for output in pieces), ()) == final.outputs[0].logprobs


def test_each_concurrent_reply_has_its_own_outputs(engine: AsyncLLM) -> None:
    params = SamplingParams(n=3, seed=5, temperature=5, max_tokens=6, ignore_eos=True)
    outputs = asyncio.run(all_of(engine.generate("a", params)))
    assert all(len(output.outputs) == 1 for output in outputs)
    whole = {output.outputs[0].index: output.outputs[0] for output in outputs}
    assert sorted(whole) == [0, 1, 2]
    assert {each.finish_reason for each in whole.values()} == {"length"}
    assert outputs[-1].finished
    params.output_kind = RequestOutputKind.FINAL_ONLY
    (final,) = asyncio.run(all_of(engine.generate("a", params)))
    assert final.outputs == tuple(whole[index] for index in range(3))


def test_a_conversation_is_answered(engine: AsyncLLM) -> None:
    requested = [{"role": "user", "content": "What is 12 + 7?"}]
    outputs = asyncio.run(all_of(engine.chat(requested, SamplingParams(temperature=0, max_tokens=40))))
    assert "19" in outputs[-1].outputs[0].text
    assert outputs[-1].outputs[0].finish_reason == "stop"


def test_prompts_have_the_same_forms(engine: AsyncLLM) -> None:
    text = last(engine, "1 + 1 =")
    assert last(engine, {"prompt": "1 + 1 ="}).outputs == text.outputs
    assert last(engine, {"prompt_token_ids": list(text.prompt_token_ids)}).outputs == text.outputs


def test_a_cancelled_task_frees_its_slot_at_once(engine: AsyncLLM) -> None:
    async def ask() -> RequestOutput:
        for _ in range(3):
            running = engine.generate("b", LONG)
            await anext(running)
            started = [asyncio.create_task(all_of(engine.generate("a", LONG))) for _ in range(8)]
            await asyncio.sleep(0)
            await anext(running)
            for task in started:
                task.cancel()
            await running.aclose()
            ended = await asyncio.gather(*started, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in ended)
        return (await all_of(engine.generate("1 + 1 =", GREEDY)))[-1]

    assert asyncio.run(ask()).finished
    assert asyncio.run(idle(engine))


def test_leaving_the_iteration_aborts_the_request(engine: AsyncLLM) -> None:
    async def ask() -> bool:
        for _ in range(6):
            outputs = engine.generate("a", LONG)
            async for _ in outputs:
                break
            await outputs.aclose()
        return await idle(engine)

    assert asyncio.run(ask())


async def idle(engine: AsyncLLM) -> bool:
    """Whether the engine becomes idle; the test's own time limit bounds the wait."""
    while engine._model.engine.has_work:
        await asyncio.sleep(0.01)
    return not engine._running


def test_a_request_is_aborted_by_its_id(engine: AsyncLLM) -> None:
    async def ask(kind: RequestOutputKind) -> list[RequestOutput]:
        params = LONG.clone()
        params.output_kind = kind
        found = []
        async for output in engine.generate("a", params, "mine"):
            found.append(output)
            if len(found) == 3:
                await engine.abort("mine")
        return found

    for kind in (RequestOutputKind.CUMULATIVE, DELTA):
        found = asyncio.run(ask(kind))
        assert {output.request_id for output in found} == {"mine"}
        assert (found[-1].finished, found[-1].outputs[0].finish_reason) == (True, "abort")
        assert len(found[-1].outputs[0].token_ids) < 120
        texts = [output.outputs[0].text for output in found]
        assert texts[-1] == ("" if kind is DELTA else texts[-2]) or texts[-1].startswith(texts[-2])
    asyncio.run(engine.abort("mine"))
    asyncio.run(engine.abort("nothing"))


def test_a_request_is_aborted_before_its_first_token(engine: AsyncLLM) -> None:
    async def ask() -> list[RequestOutput]:
        waiting = [asyncio.create_task(all_of(engine.generate("a", LONG, f"n{n}"))) for n in range(300)]
        await asyncio.sleep(0)
        for n in range(300):
            await engine.abort(f"n{n}")
        return [outputs[-1] for outputs in await asyncio.gather(*waiting)]

    assert {output.outputs[0].finish_reason for output in asyncio.run(ask())} == {"abort"}


def test_two_requests_of_one_id_are_refused(engine: AsyncLLM) -> None:
    async def ask() -> None:
        first = engine.generate("a", LONG, "same")
        await anext(first)
        with pytest.raises(ValueError, match="request_id='same': a request with this id is running"):
            await anext(engine.generate("b", GREEDY, "same"))
        await first.aclose()
        assert (await all_of(engine.generate("b", GREEDY, "same")))[-1].request_id == "same"

    asyncio.run(ask())


def test_errors_are_raised_at_the_first_output_and_do_not_affect_other_requests(engine: AsyncLLM) -> None:
    async def ask() -> list[Any]:
        wrong = [engine.generate("a", SamplingParams(temperature=9)), engine.generate("a " * 100_000)]
        right = [engine.generate("1 + 1 =", GREEDY) for _ in range(3)]
        return await asyncio.gather(*map(all_of, [*wrong, *right]), return_exceptions=True)

    temperature, length, *others = asyncio.run(ask())
    assert isinstance(temperature, RequestError)
    assert "temperature" in str(temperature)
    assert isinstance(length, RequestError)
    assert "maximum context length" in str(length)
    assert all(outputs[-1].finished for outputs in others)
    with pytest.raises(RequestError, match="unknown key"):
        engine.generate({"promt": "a"})
    with pytest.raises(RequestError, match="logits_processors"):
        engine.generate("a", SamplingParams(logits_processors=[len]))
    with pytest.raises(RequestError, match="lora_request"):
        engine.generate("a", lora_request=object())


def test_loops_of_several_threads_share_the_batch(engine: AsyncLLM) -> None:
    alone = last(engine, "5 + 5 =").outputs
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(last(engine, "5 + 5 =").outputs)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 6


def test_a_loop_that_closes_in_the_middle_aborts_its_requests(engine: AsyncLLM) -> None:
    loop = asyncio.new_event_loop()
    outputs = engine.generate("a", LONG)
    loop.run_until_complete(anext(outputs))
    loop.close()
    assert asyncio.run(idle_apart_from(engine, 1))
    del outputs


async def idle_apart_from(engine: AsyncLLM, left: int) -> bool:
    while engine._model.engine.has_work:
        await asyncio.sleep(0.01)
    return len(engine._running) <= left


def test_a_loaded_one_is_closed_by_its_context_and_reports_it() -> None:
    async def ask() -> tuple[AsyncLLM, list[Any]]:
        async with await AsyncLLM.load(max_num_seqs=2, cache_lens=1024, max_new_tokens=128) as engine:
            tokenizer = await engine.get_tokenizer()
            assert tokenizer.decode(tokenizer.encode("a"), skip_special_tokens=True) == "a"
            first = engine.generate("b", LONG)
            await anext(first)
            running = [asyncio.create_task(all_of(engine.generate("a", LONG))) for _ in range(300)]
            await asyncio.sleep(0)
        return engine, await asyncio.gather(*running, return_exceptions=True)

    engine, ended = asyncio.run(ask())
    failed = [each for each in ended if isinstance(each, BaseException)]
    assert failed
    assert all(isinstance(each, CapacityError) for each in failed)
    assert {str(each) for each in failed} == {"this AsyncLLM was closed while the request ran"}
    engine.shutdown()
    with pytest.raises(RuntimeError, match="this AsyncLLM is closed"):
        engine.generate("a")
    with pytest.raises(RuntimeError, match="this AsyncLLM is closed"):
        asyncio.run(engine.get_tokenizer())
