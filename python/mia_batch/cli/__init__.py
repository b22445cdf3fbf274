"""The command line."""

try:
    from mia_batch.cli.main import main
except KeyboardInterrupt:  # in the first moments, before there is anything to end
    raise SystemExit("mia-batch: stopped before it began") from None

__all__ = ["main"]
