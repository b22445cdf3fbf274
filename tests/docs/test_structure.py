"""The table of what to change where names places that there are."""

import re

import pytest

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "python" / "mia_batch"
PAGE = (REPOSITORY / "docs" / "structure.md").read_text("utf-8")
TABLE = PAGE.partition("## To change ... look in ...")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
PLACES = re.findall(r"`([\w/]+\.(?:py|toml))(?:: (\w+))?`", "\n".join(ROWS))


def test_every_task_has_a_place():
    assert len(ROWS) > 30
    for row in ROWS:
        assert re.search(r"\| .+ \| .*`[\w/]+\.(py|toml|css)", row), row


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_what_a_task_names_is_there(path, name):
    content = (PACKAGE / path).read_text("utf-8")
    if name:
        assert re.search(rf"^(class |def )?{name}\b", content, re.MULTILINE)
