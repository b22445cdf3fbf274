"""``python -m mia_batch``."""

from __future__ import annotations

from mia_batch.cli import main

if __name__ == "__main__":
    main()
