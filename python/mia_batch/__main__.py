"""``python -m mia_batch``."""

from mia_batch.cli import main

if __name__ == "__main__":
    main()
