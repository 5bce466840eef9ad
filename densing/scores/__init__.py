"""Capability: models, their scores, and the resulting densities."""
