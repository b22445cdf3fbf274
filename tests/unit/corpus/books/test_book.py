from __future__ import annotations

import pytest

from mia_batch.corpus.books import BookError, codec, decode

TEXT = "café naïve\n"


@pytest.mark.parametrize(
    ("content", "declared", "given", "text"),
    [
        (TEXT.encode("utf-8-sig"), "cp1252", "cp1252", TEXT),
        (TEXT.encode("utf-16"), None, None, TEXT),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), None, None, TEXT),
        (TEXT.encode("utf-32"), None, None, TEXT),
        (b"\0\0\xfe\xff" + TEXT.encode("utf-32-be"), None, None, TEXT),
        (TEXT.encode("latin-1"), "ISO-8859-1", None, TEXT),
        ("\u201ccafé\u201d".encode("cp1252"), "ISO-8859-1", None, "\u201ccafé\u201d"),
        (b"caf\xe9 \x81", "ISO-8859-1", None, "café \x81"),
        ("镕".encode("gbk"), "gb2312", None, "镕"),
        ("да".encode("koi8-r"), "KOI8-R", "cp1251", "да"),
        ("да".encode("cp1251"), None, "windows-1251", "да"),
        ("да".encode("cp1251"), "UTF-8", "cp1251", "да"),
        (TEXT.encode(), "ISO-8859-1", "cp1252", TEXT),  # converted, with its declaration
        (TEXT.encode("utf-16-le"), None, "utf-16-le", TEXT),
        ("日本".encode("iso2022_jp"), "iso-2022-jp", None, "日本"),
        (TEXT.encode(), "utf-16", None, TEXT),
        (b"plain", None, "cp1252", "plain"),
    ],
)
def test_texts_are_decoded(content, declared, given, text):
    assert decode(content, declared=declared, given=given) == text


@pytest.mark.parametrize(
    ("content", "declared", "given", "line", "what"),
    [
        (b"one\ntwo \xe9\n", None, None, 2, "byte 0xe9 is not valid UTF-8"),
        (b"caf\xe9", "us-ascii", None, 1, "byte 0xe9 is not valid us-ascii"),
        (b"a\n\n\x81\xff", "shift_jis", None, 3, "byte 0x81 is not valid shift_jis"),
        (b"a\x98", None, "cp1251", 1, "byte 0x98 is not valid cp1251"),
        (b"\xef\xbb\xbfa\n\xe9", None, "cp1252", 2, "byte 0xe9 is not valid UTF-8"),
    ],
)
def test_a_text_in_another_encoding_is_refused_with_its_place(content, declared, given, line, what):
    with pytest.raises(BookError) as error:
        decode(content, declared=declared, given=given)
    assert (str(error.value), error.value.line) == (f"{what}; save the file as UTF-8", line)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *[(" Latin-1 ", "iso8859-1"), ("x-sjis", "shift_jis"), ("UTF8", "utf-8"), ("437", "cp437")],
        *dict.fromkeys(
            ("rot13", "hex", "zlib", "idna", "punycode", "unicode_escape", "utf-7")
        ).items(),
        *dict.fromkeys(("", "none", "undefined", "a.b", "../utf-8", "\0", "utf-8\n\0")).items(),
    ],
)
def test_only_encodings_of_text_are_known(name, known):
    assert codec(name) == known
