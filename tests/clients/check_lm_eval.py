"""lm-eval's client for text completions, with the server's tokenizer."""

import math
import os

os.environ["TQDM_DISABLE"] = "1"

import requests
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from shared import BUILT_IN

APIS = ("/v1/completions",)
URL = BUILT_IN + "/v1/completions"
QUESTIONS = ("Say yes.", "hello", "What is 2 + 2?")
CONTINUATIONS = ("", "!", ".", " And", " 17")
"""Texts after the model's own answer. It ends its reply after the first three; the last token of two is unlikely."""


def client(**options):
    return LocalCompletionsAPI(model="m", base_url=URL, max_retries=1, **options)


def post(path, **body):
    reply = requests.post(BUILT_IN + path, json={"model": "m", "temperature": 0, **body}, timeout=120)
    reply.raise_for_status()
    return reply.json()


def pairs():
    """Contexts and continuations."""
    for question in QUESTIONS:
        reply = post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": question}],
            max_tokens=200,
            return_token_ids=True,
        )
        prompt, (choice,) = reply["prompt_token_ids"], reply["choices"]
        context = post("/detokenize", tokens=prompt)["prompt"]
        for more in CONTINUATIONS:
            yield context, choice["message"]["content"] + more


def ids(text):
    return post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]


def expected(context, continuation):
    """The log probabilities of a continuation's tokens, from a reply without a generated token."""
    start, whole = map(ids, (context, context + continuation))
    scores = post("/v1/completions", prompt=whole, echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"]
    return scores["token_logprobs"][len(start) :]


def check_log_likelihoods():
    tried = list(pairs())
    wanted = [expected(*pair) for pair in tried]
    ends = [
        post("/v1/completions", prompt=ids("".join(pair)), max_tokens=1)["choices"][0]["finish_reason"]
        for pair in tried
    ]
    assert any(end == "stop" and each[-1] < -5 for end, each in zip(ends, wanted, strict=True)), (ends, wanted)
    instances = [Instance("loglikelihood", {}, pair, 0) for pair in tried]
    for options in ({}, {"num_concurrent": 4}, {"batch_size": 4}):
        found = client(**options).loglikelihood(instances, disable_tqdm=True)
        for (log_likelihood, _), value in zip(found, wanted, strict=True):
            assert math.isclose(log_likelihood, sum(value), abs_tol=1e-3), (options, found, wanted)


def check_generation():
    requested = Instance("generate_until", {}, ("Once upon a time", {"until": ["."], "max_gen_toks": 16}), 0)
    (text,) = client().generate_until([requested])
    (choice,) = post("/v1/completions", prompt=ids("Once upon a time"), stop=["."], max_tokens=16)["choices"]
    assert text == choice["text"], (text, choice)
