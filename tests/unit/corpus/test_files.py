from __future__ import annotations

import os
import stat

import pytest

from mia_batch.corpus.files import find_files
from mia_batch.errors import CorpusError


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(source):
    return [file.name for file in source.files]


def test_one_file(tmp_path):
    touch(tmp_path, "Corpus.PARQUET")
    source = find_files(tmp_path / "Corpus.PARQUET")
    (file,) = source.files
    assert (source.kind, file.name, file.size) == ("columnar", "Corpus.PARQUET", 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.ndjson", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
        ("a.json.GZ", "jsonl"),
        ("a.jsonl.zst", "jsonl"),
        ("a.json", "jsonl"),
        ("a.tsv.xz", "csv"),
        ("a.arrow", "columnar"),
        ("a.csv", "csv"),
        ("a.b.txt", "books"),
        ("a.EPUB", "books"),
    ],
)
def test_the_extension_decides(tmp_path, name, kind):
    touch(tmp_path, name)
    assert find_files(str(tmp_path / name)).kind == kind


def test_a_folder_is_read_with_its_subfolders_sorted_by_name(tmp_path):
    touch(tmp_path, "b.txt", "a/z.txt", "a/b/c.txt", "a-1.txt")
    assert names(find_files(tmp_path)) == ["a/b/c.txt", "a/z.txt", "a-1.txt", "b.txt"]


def test_a_folder_is_read_without_hidden_files_and_run_folders(tmp_path):
    touch(tmp_path, "a.txt", ".hidden.txt", "_old/b.txt", ".git/c.txt", "README.md")
    touch(tmp_path, "runs/x/run.json", "runs/x/samples/part.parquet", "runs/x/targets.parquet")
    source = find_files(tmp_path)
    assert names(source) == ["a.txt"]
    assert [path.name for path in source.ignored] == ["README.md"]


def test_a_glob_is_sorted_by_name_and_names_start_after_its_literal_part(tmp_path):
    touch(tmp_path, "x/2/b.txt", "x/10/a.txt", "y/1/c.txt", "x/1.txt/d.txt")
    source = find_files(f"{tmp_path}/x/*/*.txt")
    assert names(source) == ["1.txt/d.txt", "10/a.txt", "2/b.txt"]
    assert names(find_files(f"{tmp_path}/**/a.txt")) == ["x/10/a.txt"]


def test_an_existing_name_is_no_glob(tmp_path):
    touch(tmp_path, "a[1].txt", "a1.txt")
    assert names(find_files(tmp_path / "a[1].txt")) == ["a[1].txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.parquet", "missing.parquet does not exist; give a file, a folder or a glob"),
        ("*.parquet", r"\*.parquet holds no file that can be read as a corpus; the extension must"),
        ("", "'' is not a path"),
        ("a\0/*.csv", r"'a\\x00/\*\.csv' is not a path"),
        ("~nobody-of-this-name/a.csv", "cannot be read: Could not determine home directory"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
def test_a_path_without_files_is_refused(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match=message):
        find_files(path)


def test_an_unknown_extension_is_refused(tmp_path):
    touch(tmp_path, "corpus.xlsx")
    with pytest.raises(
        CorpusError, match=r"corpus\.xlsx has an unknown extension; .* one of \.par"
    ):
        find_files(tmp_path / "corpus.xlsx")


def test_a_folder_without_known_files_is_refused(tmp_path):
    touch(tmp_path, "corpus.xlsx")
    with pytest.raises(CorpusError, match="holds no file that can be read as a corpus"):
        find_files(tmp_path)


def test_mixed_kinds_are_refused(tmp_path):
    touch(tmp_path, "a.txt", "b.csv")
    with pytest.raises(CorpusError, match=r"mixes kinds of files, such as .*a\.txt and .*b\.csv; "):
        find_files(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "corpus.csv")
    with pytest.raises(CorpusError, match=r"corpus\.csv is not a regular file"):
        find_files(tmp_path / "corpus.csv")


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    touch(tmp_path, os.fsdecode(b"caf\xe9.txt"))
    with pytest.raises(CorpusError, match=r"the file name '.*caf.udce9\.txt' is not valid UTF-8"):
        find_files(tmp_path)
    with pytest.raises(CorpusError, match=r"'caf.udce9\.txt' is not a path; give a file"):
        find_files(os.fsdecode(b"caf\xe9.txt"))


def test_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "a.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(CorpusError, match="cannot be read: No such file or directory"):
        find_files(tmp_path)


def test_a_folder_without_permission_is_refused(tmp_path, without_privileges):
    locked = tmp_path / "locked"
    touch(tmp_path, "locked/a.txt")
    locked.chmod(0)
    with (
        without_privileges(),
        pytest.raises(CorpusError, match="cannot be read: Permission denied"),
    ):
        find_files(locked)
    locked.chmod(stat.S_IRWXU)
