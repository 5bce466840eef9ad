"""The ``densing`` command: parse, call, show, write."""

from densing.cli.app import app, main

__all__ = ["app", "main"]
