"""Who follows a folder learns of each change before it is visible."""

from __future__ import annotations

import pytest

from mia_batch.tables import followed, is_followed, move, put_copy, remove, write_text


class Listing:
    """Writes down what it learns, and how the file was at that time."""

    def __init__(self):
        self.learned = []

    def put(self, path, content):
        self.learned.append((path.name, self._seen(path), content.read_text()))

    def put_copy(self, path, content):
        self.learned.append((path.name, "copy", content.read_text()))

    def remove(self, path):
        self.learned.append((path.name, self._seen(path), None))

    def _seen(self, path):
        return path.read_text() if path.exists() else None


def test_it_learns_in_order_what_becomes_visible_and_what_goes(tmp_path):
    listing = Listing()
    (tmp_path / "parts").mkdir()
    part = tmp_path / "parts" / "one"
    write_text(part, "unseen")
    with followed(tmp_path, listing):
        assert is_followed(part)
        write_text(part, "first")
        write_text(part, "second")
        move(part, tmp_path / "two")
        put_copy(tmp_path / "log", tmp_path / "two")
        remove(tmp_path / "two")
        remove(tmp_path / "two")  # gone already
    write_text(part, "unseen")
    assert not is_followed(part)
    assert listing.learned == [
        ("one", "unseen", "first"),
        ("one", "first", "second"),
        ("two", None, "second"),
        ("one", "second", None),
        ("log", "copy", "second"),
        ("two", "second", None),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_what_it_raises_prevents_the_change(tmp_path):
    class Refusing(Listing):
        def put(self, path, content):
            raise OSError(28, "full")

        def remove(self, path):
            raise ValueError(path)

    path = tmp_path / "one"
    write_text(path, "first")
    with followed(tmp_path, Refusing()):
        with pytest.raises(Exception, match="No space left"):
            write_text(path, "second")
        with pytest.raises(ValueError, match="one"):
            remove(path)
    assert path.read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["one"]
