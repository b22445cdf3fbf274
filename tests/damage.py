"""Files that a disk has changed."""

from pathlib import Path


def damage(path: Path, changed: slice) -> None:
    """Turn every bit of some bytes of a file."""
    data = bytearray(path.read_bytes())
    data[changed] = bytes(255 - byte for byte in data[changed])
    path.write_bytes(data)
