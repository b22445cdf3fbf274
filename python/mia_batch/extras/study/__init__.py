"""Studies of papers as commands: runs set side by side, with one table and one picture."""
