"""The command line: a module for each command."""

from fullattention.cli.command import main

__all__ = ["main"]
