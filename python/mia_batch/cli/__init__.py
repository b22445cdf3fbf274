"""The command line."""

try:
    from mia_batch.cli.main import main
except (
    KeyboardInterrupt
):  # Ctrl-C in the first moments, before there is anything to end in order
    raise SystemExit("mia-batch: stopped before it began") from None

__all__ = ["main"]
