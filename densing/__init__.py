"""densing: capability per parameter, how fast it grows, and what it costs."""

__version__ = "0.1.0"
