"""The instructions in docs/clients/coding-agents.md, so that the tests use exactly what users read."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "clients" / "coding-agents.md"
URL = "http://127.0.0.1:10002"


def block(agent, language, url):
    """The first block in that language in an agent's chapter, for a server at `url`."""
    chapter = PAGE.read_text().split(f"\n## {agent}\n")[1].split("\n## ")[0]
    found = re.search(rf"^```{language}\n(.*?)^```$", chapter, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{PAGE}: the chapter {agent} has no block of {language or 'commands'}"
    return found[1].replace(URL, url)
