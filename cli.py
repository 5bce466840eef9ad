"""Run densing from a checkout: ``python cli.py run``."""

from densing.cli import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
