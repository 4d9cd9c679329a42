"""Cost of rendering a chat: the same template in this process, as for Ballast's own templates, and in the guarded
process that renders a model's templates.

python benchmarks/serving/template_cost.py

Prints one JSON line per length of the conversation: median milliseconds of both.
"""

from __future__ import annotations

import time
from importlib.resources import files
from statistics import median

from ballast.text.chat_template import ChatTemplate
from devkit.bench_record import bench_record

RENDERINGS = 200
MESSAGE = "Is this the shortest way, or is there one that leaves the river on the other side? " * 6


def main() -> None:
    source = files("ballast.text").joinpath("templates/deepseek-v3.1.jinja").read_text(encoding="utf-8")
    own = template(source)
    foreign = template(source + "{# as a model brings it #}")
    assert foreign.is_guarded
    assert not own.is_guarded
    for num_messages in (1, 21, 201):
        chat = [{"role": "assistant" if i % 2 else "user", "content": MESSAGE} for i in range(num_messages)]
        print(
            bench_record(
                "serving/template_cost",
                f"{num_messages} messages of {len(MESSAGE)} characters",
                in_process_ms=median_ms(own, chat),
                guarded_ms=median_ms(foreign, chat),
            ),
            flush=True,
        )


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


def median_ms(rendered: ChatTemplate, chat: list[dict[str, str]]) -> float:
    times = []
    for _ in range(RENDERINGS):
        begin = time.perf_counter()
        rendered.render(chat)
        times.append(1e3 * (time.perf_counter() - begin))
    return round(median(times), 3)


if __name__ == "__main__":
    main()
