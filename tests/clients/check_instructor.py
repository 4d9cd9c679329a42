"""instructor, with OpenAI's client."""

import instructor
import openai
from instructor.core import InstructorRetryException
from shared import BUILT_IN, KEY, SCRIPTED, Painting, Raises

APIS = ("/v1/chat/completions",)

plain = openai.OpenAI(base_url=BUILT_IN + "/v1", api_key="none", max_retries=0)
keyed = openai.OpenAI(base_url=SCRIPTED + "/v1", api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "hello"}]
REQUESTED = {
    "model": "m",
    "messages": HELLO,
    "response_model": Painting,
    "max_retries": 0,
    "max_tokens": 900,
    "seed": 3,
}


def check_stream():
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    *_, last = client.chat.completions.create_partial(**REQUESTED)
    Painting.model_validate(last.model_dump())


def check_tools():
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    assert isinstance(client.chat.completions.create(**REQUESTED), Painting)


def check_structured_output():
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    assert isinstance(client.chat.completions.create(**REQUESTED), Painting)


def check_errors():
    refused = instructor.from_openai(keyed.with_options(api_key="another"))
    requested = (
        (openai.AuthenticationError, refused, {}),
        (openai.BadRequestError, instructor.from_openai(plain), {"temperature": 9}),
    )
    for kind, client, fields in requested:
        with Raises(InstructorRetryException) as raised:
            client.chat.completions.create(**REQUESTED | fields)
        assert isinstance(raised.error.__cause__, kind), raised.error.__cause__
