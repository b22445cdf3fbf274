"""Stages of an audit, a file each; `auditing` lists them in their order."""
