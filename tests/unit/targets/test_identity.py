from __future__ import annotations

import hashlib

from mia_batch.targets import from_document_id, from_text, target_id, text_digest


def number(value):
    return value.to_bytes(8, "little")


def test_known_names():
    """These never change: a run folder is continued by them."""
    assert target_id(from_document_id("book 1"), 3, "né à") == "68a61df3a9a450ada303d223a5c8c52c"
    assert target_id(from_text(text_digest("a b"), 0), 0, "a b") == (
        "186ae4a3a13881352bfa1bb3a3a41354"
    )
    assert target_id(from_text(text_digest(None), 2), 0, None) == "dc86c223eb22298ad3dd144266d1033b"


def test_a_name_is_the_hash_of_its_parts_after_their_lengths():
    identity, text = b"document_idbook 1", "né à".encode()
    parts = number(len(identity)) + number(3) + number(len(text) + 1) + identity + text
    expected = hashlib.blake2b(parts, digest_size=16).hexdigest()
    assert target_id(from_document_id("book 1"), 3, "né à") == expected


def test_each_part_counts():
    names = {
        target_id(from_document_id("a"), 0, "b"),
        target_id(from_document_id("a"), 1, "b"),
        target_id(from_document_id("ab"), 0, ""),
        target_id(from_document_id("ab"), 0, None),
        target_id(from_document_id(""), 0, "ab"),
        target_id(from_text(text_digest("a"), 0), 0, "b"),
        target_id(from_text(text_digest("a"), 1), 0, "b"),
        target_id(from_text(text_digest(""), 0), 0, "b"),
        target_id(from_text(text_digest(None), 0), 0, "b"),
    }
    assert len(names) == 9
