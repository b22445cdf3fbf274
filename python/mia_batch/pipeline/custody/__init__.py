"""Chain of custody: the root over a run, stamps of it, and samples drawn again."""
