"""Structured replies, through the real `openai` client and a model whose output is noise without a grammar."""

import json
import re
import threading

import openai
import pytest
from pydantic import BaseModel

from devkit.servers.process import ServerProcess

HELLO = [{"role": "user", "content": "hello"}]


class Person(BaseModel):
    name: str
    age: int
    clever: bool


SHORT = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


def schema_of(schema, *, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "shape", "strict": strict, "schema": schema}}


@pytest.fixture(scope="module")
def server(noise):
    options = ("--max_new_tokens", "512", "--cache_lens", "8192", "--chunk_size", "64", "--max_batch_size", "4")
    with ServerProcess(*noise, *options) as process:
        yield process


def chat(client, **fields):
    fields = {"temperature": 1.0, "max_tokens": 400, "seed": 1} | fields
    return client.chat.completions.create(model="m", messages=HELLO, **fields)


def test_a_schema_is_followed_whole_and_streamed(client):
    for seed in range(5):
        reply = chat(client, seed=seed, response_format=schema_of(SHORT))
        assert reply.choices[0].finish_reason == "stop"
        value = json.loads(reply.choices[0].message.content)
        assert value["kind"] in ("cat", "dog")
        assert 0 <= value["age"] <= 99
        stream = chat(client, seed=seed, response_format=schema_of(SHORT), stream=True)
        text = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
        assert text == reply.choices[0].message.content


def test_the_parse_helper_gets_its_model(client):
    """Strings end because a bias of 100 makes the quotation mark almost certain where it is allowed."""
    quote = quotation_marks(client)
    parsed = client.chat.completions.parse(
        model="m", messages=HELLO, response_format=Person, max_tokens=400, seed=4, logit_bias=quote
    )
    person = parsed.choices[0].message.parsed
    assert isinstance(person, Person)


def quotation_marks(client):
    """A bias for the tokens that end a string, found by testing the spelling of all ids."""
    reply = client.completions.create(
        model="m", prompt=[list(range(2, 400))], echo=True, max_tokens=0, logprobs=0
    ).choices[0]
    return {str(n): 100 for n, token in enumerate(reply.logprobs.tokens, 2) if token in ('"', '",', '"}')}


def test_any_object_is_valid_json_with_every_other_parameter_on(client):
    reply = chat(
        client,
        response_format={"type": "json_object"},
        n=4,
        logprobs=True,
        top_logprobs=2,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        logit_bias=quotation_marks(client),
        extra_body={"min_p": 0.01, "top_k": 300, "repetition_penalty": 1.1},
    )
    ended = [choice for choice in reply.choices if choice.finish_reason == "stop"]
    assert ended
    for choice in ended:
        assert isinstance(json.loads(choice.message.content), dict)
        *spelled, _end = choice.logprobs.content
        assert b"".join(bytes(token.bytes) for token in spelled).decode() == choice.message.content


def test_a_truncated_reply_has_finish_reason_length_and_begins_like_its_schema(client):
    reply = chat(client, response_format=schema_of(SHORT), max_tokens=3)
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content.startswith("{")


def test_texts_and_patterns_hold_for_completions_too(client):
    def text(**shape):
        reply = client.completions.create(
            model="m", prompt="hello", max_tokens=60, seed=3, extra_body={"structured_outputs": shape}
        )
        assert reply.choices[0].finish_reason == "stop"
        return reply.choices[0].text

    assert text(choice=["yes", "no", "perhaps"]) in ("yes", "no", "perhaps")
    assert re.fullmatch(r"[A-Z]{2}-[0-9]{3}", text(regex="[A-Z]{2}-[0-9]{3}"))
    assert json.loads(text(json=json.dumps(SHORT)))["kind"] in ("cat", "dog")


KINDS = 'root ::= "cat" | "dog" num\nnum ::= [0-9]{2}'
DOG_OR_CAT = r"cat|dog\d\d"


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"grammar": KINDS}}, DOG_OR_CAT),
        ({"structured_outputs": {"grammar": 'start: "cat" | "dog" /[0-9]{2}/'}}, DOG_OR_CAT),
        ({"guided_grammar": KINDS}, DOG_OR_CAT),
        ({"ebnf": KINDS}, DOG_OR_CAT),
        ({"grammar": KINDS}, DOG_OR_CAT),
        ({"guided_regex": "[a-c]{3}"}, "[a-c]{3}"),
        ({"regex": "[a-c]{3}"}, "[a-c]{3}"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"guided_json": SHORT}, r"(?s)\{.*kind.*\}"),
        ({"guided_json": json.dumps(SHORT)}, r"(?s)\{.*kind.*\}"),
        ({"json_schema": SHORT}, r"(?s)\{.*kind.*\}"),
        ({"response_format": {"type": "json_object", "schema": SHORT}}, r"(?s)\{.*kind.*\}"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SHORT}}}, r"(?s)\{.*kind.*\}"),
        ({"guided_json_object": True, "logit_bias": None}, r"(?s)\{.*\}"),
    ],
)
def test_every_dialects_format_field_is_enforced_in_completions_and_chats(client, fields, pattern):
    bias = quotation_marks(client) if "logit_bias" in fields else {}
    requested = {name: value for name, value in fields.items() if name != "logit_bias"}
    common = {"model": "m", "max_tokens": 400, "seed": 3, "logit_bias": bias, "extra_body": requested}
    texts = [
        client.completions.create(prompt="hello", **common).choices[0].text,
        client.chat.completions.create(messages=HELLO, **common).choices[0].message.content,
    ]
    for text in texts:
        assert re.fullmatch(pattern, text), text
        if "kind" in pattern:
            assert json.loads(text)["kind"] in ("cat", "dog")


@pytest.mark.parametrize("name", ["grammar", "regex", "ebnf", "guided_regex", "guided_grammar", "json_schema"])
def test_an_empty_format_requests_no_structure(client, name):
    free = chat(client, max_tokens=8).choices[0].message.content
    assert chat(client, max_tokens=8, extra_body={name: ""}).choices[0].message.content == free


def test_greedy_text_under_a_grammar_is_the_same_in_any_batch(server, client):
    def ask(n):
        shape = [schema_of(SHORT), {"type": "json_object"}, None][n % 3]
        fields = {"response_format": shape} if shape else {}
        return chat(client, temperature=0, max_tokens=24, stop=f"q{n}", **fields).choices[0].message.content

    alone = [ask(n) for n in range(9)]
    together = [""] * 9

    def work(n):
        together[n] = ask(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone
    server.wait_until_empty()


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"response_format": schema_of({"type": "string", "pattern": "(?=x)"})}, "response_format.json_schema.schema",
         "look-around"),
        ({"response_format": schema_of({"type": "object", "unevaluatedItems": True})},
         "response_format.json_schema.schema", "unevaluatedItems"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
        ({"response_format": {"type": "json_object"}, "extra_body": {"ignore_eos": True}}, "ignore_eos", "grammar"),
        ({"extra_body": {"structured_outputs": {"regex": "(", }}}, "structured_outputs.regex", "regex"),
        ({"extra_body": {"structured_outputs": {}}}, "structured_outputs", "exactly one"),
        ({"response_format": {"type": "json_object"}, "extra_body": {"structured_outputs": {"regex": "a"}}},
         "structured_outputs", "response_format"),
        ({"extra_body": {"grammar": "root ::= [a", }}, "grammar", "cannot be read"),
        ({"extra_body": {"ebnf": "root ::= " + "(" * 9999}}, "ebnf", "nested too deeply"),
        ({"extra_body": {"guided_grammar": "start: nothing"}}, "guided_grammar", "nothing"),
        ({"extra_body": {"regex": "a", "guided_choice": ["a"]}}, "regex", "excludes guided_choice"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "json_object"),
    ],
)  # fmt: skip
def test_a_shape_that_cannot_be_enforced_is_refused_by_name(client, fields, param, reason):
    with pytest.raises(openai.BadRequestError, match=reason) as refusal:
        chat(client, **fields)
    assert refusal.value.param == param


def test_keywords_ignored_without_strict_are_listed_in_the_reply(client):
    odd = {
        "type": "object",
        "properties": {"kind": {"enum": ["cat"]}, "mail": {"type": "string", "pattern": "^(?!x)y$"}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    requested = {"model": "m", "max_tokens": 200, "seed": 1, "logit_bias": quotation_marks(client)}
    chats = client.chat.completions.with_raw_response
    loose = chats.create(**requested, messages=HELLO, response_format=schema_of(odd, strict=False))
    assert loose.headers["x-ballast-ignored"] == "response_format.json_schema.schema.properties.mail.pattern"
    assert json.loads(loose.parse().choices[0].message.content)["kind"] == "cat"
    itself = chats.create(**requested, messages=HELLO, response_format=schema_of({"$ref": "#"}, strict=False))
    assert itself.headers["x-ballast-ignored"] == "response_format.json_schema.schema"
    fields = {"max_output_tokens": 200, "extra_body": {"seed": 1, "logit_bias": requested["logit_bias"]}}
    text = {"format": {"type": "json_schema", "name": "shape", "schema": odd}}
    response = client.responses.with_raw_response.create(model="m", input="hello", text=text, **fields)
    assert response.headers["x-ballast-ignored"] == "text.format.schema.properties.mail.pattern"
    with pytest.raises(openai.BadRequestError, match="look-ahead") as refused:
        chats.create(**requested, messages=HELLO, response_format=schema_of(odd))
    assert refused.value.param == "response_format.json_schema.schema"
