"""The Containerfile builds what the project says: versions and extras of other files."""

import re
import tomllib

import pytest

from tests.conftest import REPOSITORY

CONTAINERFILE = (REPOSITORY / "Containerfile").read_text("utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
CARGO = tomllib.loads((REPOSITORY / "Cargo.toml").read_text("utf-8"))


def find(pattern):
    (value,) = re.findall(pattern, CONTAINERFILE, re.MULTILINE)
    return value


def test_versions_are_those_of_the_project():
    wheels = (REPOSITORY / ".ci" / "wheels").read_text("utf-8")
    assert f"maturin=={find(r'maturin==([0-9.]+)')} " in wheels
    rust = [int(part) for part in find(r"^ARG RUST=rust:([0-9.]+)").split(".")]
    least = [
        int(part) for part in CARGO["workspace"]["package"]["rust-version"].split(".")
    ]
    assert rust >= least
    python = find(r"^ARG BASE=python:([0-9.]+)")
    assert PROJECT["requires-python"] == f">={python}"


@pytest.mark.parametrize("extras", re.findall(r"EXTRAS=([a-z,]+)", CONTAINERFILE))
def test_extras_are_there(extras):
    assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}


def test_only_what_the_wheel_is_made_of_travels_into_the_image():
    lines = (REPOSITORY / ".containerignore").read_text("utf-8").splitlines()
    assert lines[0] == "*"
    taken = [line[1:] for line in lines if line.startswith("!")]
    assert all((REPOSITORY / name).exists() for name in taken)
    assert PROJECT["readme"] in taken
    assert {*PROJECT["license-files"]} <= {*taken}
