"""The benchmarks page and the README's table match the records."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.benchmarks import page, records
from tools.benchmarks.__main__ import ROOT, main
from tools.benchmarks.chart import grouped_bars
from tools.benchmarks.page import BEGIN, END, files, with_speed
from tools.benchmarks.question import Column, Highlight, Page, Question, Row
from tools.benchmarks.questions import COMPARED, PAGES

SPEED = Question(
    name="speed",
    title="Speed",
    about="How fast.",
    file="speed.jsonl",
    rows=(Row("one stream", "decode B=1", {"isa": "amx"}),),
    columns=(Column("tok/s", "tokens_per_s", spread=True, charted=True), Column("share, %", "share", scale=100)),
    command="python speed.py",
    axis="tokens a second",
)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of records that replaces the project's."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    records._records.cache_clear()
    return tmp_path / "speed.jsonl"


def record(**figures: Any) -> str:
    common = {"case": "decode B=1", "isa": "amx", "time": "2026-11-20T10:00Z", "commit": "0123456789ab", "cpu": "Chip"}
    return json.dumps(common | {"cores": 2} | figures) + "\n"


def page_of(question: Question) -> str:
    path = Path("docs/page.md")
    return dict(files([Page(path, "# Page", (question,))]))[path]


def test_pages_charts_and_readme_match_the_records() -> None:
    assert main(["--check"]) == 0, "run: make docs-reference"


def test_the_page_of_comparisons_reads_in_five_minutes() -> None:
    words = [word for word in (ROOT / "docs/benchmarks.md").read_text().split() if re.search(r"\w", word)]
    assert len(words) <= 1200


def test_a_comparison_names_its_peer() -> None:
    compared = [question for question in COMPARED if any(_is_of_a_peer(column) for column in question.columns)]
    assert len(compared) >= 4
    assert [question.name for question in compared if not question.peer] == []


def _is_of_a_peer(column: Column) -> bool:
    return column.figure.startswith("theirs") or column.of.get("server") == "llama"


def test_a_chart_of_a_cut_r1_says_so_inside_the_picture() -> None:
    cut = re.compile(r"r1[:-]8|r1\.gguf")
    charts = dict(files(PAGES))
    checked = 0
    for question in (question for each in PAGES for question in each.questions if question.axis):
        if question.file != "engine_whole_model.jsonl" and any(cut.match(row.case) for row in question.rows):
            assert "8 of 61 layers" in charts[page.CHARTS / f"{question.name}.svg"], question.name
            checked += 1
    assert checked >= 1


def test_every_record_is_shown_on_a_page_or_referenced_elsewhere() -> None:
    """Files that only the pages mention contain no records except those that the pages show."""
    shown: dict[str, list[records.Record]] = {}
    for question in (question for each in PAGES for question in each.questions):
        shown.setdefault(question.file, []).extend(found for row in page._records(question) for found in row)
    generated = {ROOT / each.path for each in PAGES}
    folders = ("docs", "runtime", "tests", "csrc")
    sources = [
        *(path for folder in folders for kind in ("md", "py", "h") for path in (ROOT / folder).rglob(f"*.{kind}")),
        ROOT / "CONTRIBUTING.md",
    ]
    text = "\n".join(path.read_text() for path in sources if path not in generated)
    for path in records.RESULTS.glob("*.jsonl"):
        if not re.search(rf'\b{path.stem}(\.jsonl|")', text):
            unseen = [each["case"] for each in records._records(path.name) if each not in shown.get(path.name, [])]
            assert unseen == [], path.name


def test_a_table_shows_the_newest_record_with_its_machine_and_commit(results: Path) -> None:
    old, other = record(tokens_per_s=1.0, share=0.1), record(tokens_per_s=2.0, isa="avx2", time="2026-11-29T10:00Z")
    results.write_text(record(tokens_per_s=[30, 10, 20], share=0.5, gpu="GPU", time="2026-11-21T10:00Z") + old + other)
    text = page_of(SPEED)
    assert "| one stream | 20 (10–30) | 50 |" in text
    assert "one GPU and 2 cores of Chip with AMX (0123456, 2026-11-21)" in text
    assert "python speed.py" in text


def test_a_figure_without_a_record_is_an_error(results: Path) -> None:
    results.write_text(record(isa="avx2", tokens_per_s=1.0))
    with pytest.raises(records.NoRecordError, match="has no record of 'decode B=1'"):
        page_of(SPEED)


def test_a_column_completes_the_case_of_a_row(results: Path) -> None:
    columns = tuple(Column(number, "tokens_per_s", case=number) for number in ("one", "two"))
    rows = (Row("short", "*: prefill 8"), Row("long", "*: prefill 9"))
    where = {"gpu": "GPU", "isa": "avx2"}
    results.write_text(
        record(case="one: prefill 8", tokens_per_s=3, devices=["cuda:0"], **where)
        + record(case="two: prefill 8", tokens_per_s=4, devices=["cuda:0", "cuda:1"], **where)
        + record(case="two: prefill 9", tokens_per_s=5, devices=["cuda:0", "cuda:1"], **where)
    )
    text = page_of(replace(SPEED, rows=rows, columns=columns, axis=""))
    assert "| short | 3 | 4 |\n| long | – | 5 |" in text
    assert "one GPU and 2 cores of Chip" in text
    assert "two GPU and 2 cores of Chip" in text


def test_columns_show_the_records_of_two_servers_and_their_commands(results: Path) -> None:
    ours, theirs = (
        Column(server, "tokens_per_s", of={"server": server}, charted=True) for server in ("ballast", "llama")
    )
    rows = (Row("both", "decode B=1"), Row("ours alone", "decode B=2"))
    question = replace(SPEED, rows=rows, columns=(ours, theirs), shows_servers=True)
    results.write_text(
        record(server="ballast", tokens_per_s=3, command="ballast serve")
        + record(server="llama", tokens_per_s=2, command="llama-server", peer_command="peer", commit="fedcba987654+")
        + record(server="ballast", tokens_per_s=4, command="ballast serve", case="decode B=2")
    )
    text = page_of(question)
    assert "| both | 3 | 2 |\n| ours alone | 4 | – |" in text
    assert "```\nballast serve\nllama-server\npeer\n```" in text
    assert "(0123456, 2026-11-20; fedcba9+, 2026-11-20)" in text


@pytest.mark.parametrize(
    ("case", "server", "message"),
    [("decode B=3", "ballast", "no record of 'decode B=3'"), ("decode B=1", "llama", "no record with {'server'")],
)
def test_a_row_or_column_without_any_record_is_an_error(results: Path, case: str, server: str, message: str) -> None:
    results.write_text(record(server="ballast", tokens_per_s=3))
    columns = tuple(Column(name, "tokens_per_s", of={"server": name}) for name in ("ballast", server))
    question = replace(SPEED, rows=(Row("one", "decode B=1"), Row("two", case)), columns=columns)
    with pytest.raises(records.NoRecordError, match=message):
        page_of(question)


def test_the_readme_takes_its_table_between_two_marks(results: Path) -> None:
    results.write_text(record(tokens_per_s=1234.5))
    highlights = [Highlight("one stream", SPEED, 0, Column("tok/s", "tokens_per_s"))]
    readme = with_speed(f"before\n{BEGIN}\nan old table\n{END}\nafter", highlights)
    assert "| one stream | 1,234 tok/s | – |" in readme
    results.write_text(record(tokens_per_s=[1, 3, 2]))
    records._records.cache_clear()
    ours, theirs = (Column("tok/s", "tokens_per_s", spread=spread) for spread in (True, False))
    compared = with_speed(readme, [Highlight("one stream", SPEED, 0, ours, theirs, peer="other")])
    assert "| one stream | 2 tok/s (1–3) | 2 tok/s (other) |" in compared
    assert "an old table" not in readme
    assert readme.startswith("before\n")
    assert readme.endswith(f"{END}\nafter")
    with pytest.raises(ValueError, match=re.escape(END)):
        with_speed(BEGIN, highlights)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("tok/s", "tokens_per_s", of={"server": "llama"}), "no record of 'decode B=1' with .*'server': 'llama'"),
        (Column("tok/s", "goodput_per_s"), "no 'goodput_per_s' of 'decode B=1'"),
        (Column("tok/s", "share"), "no 'share' of 'decode B=1'"),
    ],
)
def test_a_figure_of_the_readme_that_was_not_measured_is_an_error(results: Path, column: Column, message: str) -> None:
    results.write_text(record(tokens_per_s=3, share=None))
    ours = Column("tok/s", "tokens_per_s")
    for highlight in (Highlight("one", SPEED, 0, column), Highlight("one", SPEED, 0, ours, column)):
        with pytest.raises(records.NoRecordError, match=message):
            with_speed(f"{BEGIN}\n{END}", [highlight])


def test_a_column_whose_figure_no_row_has_is_an_error(results: Path) -> None:
    results.write_text(record(tokens_per_s=3, share=None))
    with pytest.raises(records.NoRecordError, match="no 'share' in these records"):
        page_of(SPEED)


def test_a_chart_is_the_same_file_every_time_and_follows_the_readers_theme() -> None:
    one, two = (grouped_bars(["a", "b"], [("x", [1, 2]), ("y", [3, 4])], "axis", "title") for _ in range(2))
    assert one == two
    assert "prefers-color-scheme:dark" in one
    assert not re.search(r"#0[1-5]0[1-5]0[1-5]", one), "a placeholder colour was not replaced"
    assert "DejaVu" not in one
