"""Executors: blocks of prompts go in, blocks of rows come out, wherever they are worked on."""
