"""The pages of benchmarks, their charts and the README's table, from questions and records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.benchmarks.chart import grouped_bars
from tools.benchmarks.question import Column, Highlight, Page, Question, Row
from tools.benchmarks.records import NoRecordError, Record, machine, middle, newest
from tools.pages import NOTE, paragraph, table

CHARTS = Path("docs/pictures/benchmarks")

# The README's table of speed is between these two marks.
BEGIN = "<!-- speed: written by `make docs-reference` from benchmarks/results -->"
END = "<!-- end of speed -->"


def files(pages: Iterable[Page]) -> Iterator[tuple[Path, str]]:
    """Each page and its charts, their paths relative to the repository's root."""
    for page in pages:
        parts = [page.introduction]
        for question in page.questions:
            records = _records(question)
            parts.append("\n".join(_part(question, records)))
            if question.axis:
                yield CHARTS / f"{question.name}.svg", _chart(question, records)
        yield page.path, NOTE + "\n" + "\n\n".join(parts) + "\n"


def with_speed(readme: str, highlights: Iterable[Highlight]) -> str:
    """The README with a table of the highlights between its two marks.

    Raises ValueError if a mark is missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has no {BEGIN!r} followed by {END!r}")
    rows = [
        (
            each.label,
            _figure(each, each.ours),
            f"{_figure(each, each.theirs)} ({each.peer})" if each.theirs else "–",
        )
        for each in highlights
    ]
    return "\n".join((before + begin, *table(("", "Ballast", "other engine"), rows), end + after))


def _figure(highlight: Highlight, column: Column) -> str:
    question, row = highlight.question, highlight.question.rows[highlight.row]
    figure = newest(question.file, row.case.replace("*", column.case), {**row.where, **column.of}).get(column.figure)
    if figure is None:
        raise NoRecordError(f"benchmarks/results/{question.file} has no {column.figure!r} of {row.case!r}")
    return f"{_number(middle(figure), column)} {column.title}{_spread(figure, column)}"


def _records(question: Question) -> list[tuple[Record, ...]]:
    """For each row, the record of each column. A column that selects its own record may have none in some rows.

    Raises NoRecordError if a row or a column has no record."""
    records = [tuple(_record(question, row, column) for column in question.columns) for row in question.rows]
    for row, found in zip(question.rows, records, strict=True):
        if not any(found):
            raise NoRecordError(f"benchmarks/results/{question.file} has no record of {row.case!r}")
    for number, column in enumerate(question.columns):
        if not any(found[number] for found in records):
            raise NoRecordError(
                f"benchmarks/results/{question.file} has no record with {dict(column.of) or column.case}"
            )
        if all(found[number].get(column.figure) is None for found in records):
            raise NoRecordError(f"benchmarks/results/{question.file} has no {column.figure!r} in these records")
    return records


def _record(question: Question, row: Row, column: Column) -> Record:
    try:
        return newest(question.file, row.case.replace("*", column.case), {**row.where, **column.of})
    except NoRecordError:
        if not (column.of or column.case):
            raise
        return {}


def _distinct(records: list[tuple[Record, ...]]) -> list[Record]:
    """The records in the order of the table, each once."""
    return list({id(record): record for found in records for record in found if record}.values())


def _part(question: Question, records: list[tuple[Record, ...]]) -> Iterator[str]:
    yield f"## {question.title}"
    yield ""
    yield from paragraph(question.about)
    yield ""
    if question.axis:
        yield f"![{question.title}: chart of the table below](pictures/benchmarks/{question.name}.svg)"
        yield ""
    yield from _table(question, records)
    yield ""
    if question.peer:
        yield from paragraph(f"Peer: {question.peer}")
        yield ""
    yield from paragraph(f"Measured on {_source(_distinct(records))}; `{question.file}`. Command:")
    yield ""
    yield "```"
    yield question.command
    yield "```"
    if question.shows_servers:
        yield ""
        yield "The commands:"
        yield ""
        yield "```"
        names = ("command", "peer_command")
        # The models differ by row; the rest of a command is mostly the same.
        lines = (str(record[name]) for record in _distinct(records) for name in names if name in record)
        yield from dict.fromkeys(re.sub(r"\S+\.gguf", "MODEL.gguf", line) for line in lines)
        yield "```"


def _table(question: Question, records: list[tuple[Record, ...]]) -> Iterator[str]:
    titles = ("", *(column.title for column in question.columns))
    rows = [
        (row.label, *(_cell(column, record) for column, record in zip(question.columns, found, strict=True)))
        for row, found in zip(question.rows, records, strict=True)
    ]
    yield from table(titles, rows)


def _cell(column: Column, record: Record) -> str:
    figure = record.get(column.figure)
    if figure is None:
        return "–"
    return _number(middle(figure), column) + _spread(figure, column)


def _spread(figure: object, column: Column) -> str:
    """The lowest and highest of repeated measurements in brackets, after a space; empty if the column hides them."""
    if not (column.spread and isinstance(figure, list) and len(figure) > 1):
        return ""
    return f" ({_number(min(figure), column)}–{_number(max(figure), column)})"


def _number(value: float, column: Column) -> str:
    return f"{value * column.scale:,.{column.digits}f}"


def _source(records: list[Record]) -> str:
    """Each machine once, with the commits and days of its measurements."""
    seen: dict[str, dict[str, None]] = {}
    for record in records:
        seen.setdefault(machine(record), {})[f"{_commit(record)}, {str(record['time'])[:10]}"] = None
    return "; ".join(f"{place} ({'; '.join(times)})" for place, times in seen.items())


def _commit(record: Record) -> str:
    """Seven digits of the commit, with a + if the working tree had changes."""
    commit = str(record["commit"])
    return commit[:7] + ("+" if commit.endswith("+") else "")


def _chart(question: Question, records: list[tuple[Record, ...]]) -> str:
    series = [
        (column.title, [middle(found[number].get(column.figure, 0)) * column.scale for found in records])
        for number, column in enumerate(question.columns)
        if column.charted
    ]
    return grouped_bars([row.label for row in question.rows], series, question.axis, question.title)
