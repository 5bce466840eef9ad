"""Capability: who the models are, what they scored, and the density that follows."""
