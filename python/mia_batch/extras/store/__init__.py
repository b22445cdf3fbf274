"""Run folders in an object store: an ordinary folder here, and a mirror of it there."""
