"""instructor against a running server: check_instructor.py URL"""

import sys
from importlib.metadata import version
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict


class Painting(BaseModel):
    """A painting."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "green"]
    sure: bool


if __name__ == "__main__":
    with openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0) as plain:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            client = instructor.from_openai(plain, mode=mode)
            painting = client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hello"}],
                response_model=Painting,
                max_retries=0,
                max_tokens=900,
                seed=3,
            )
            assert painting.colour in ("red", "green"), mode
    print(f"instructor {version('instructor')}: tools, structured output")
