"""What weights and items weigh: plans and runs count bytes alike."""

NUMBER = 8
"""Bytes of a weight or an entry of a gradient: a double, as in the authors' code."""
ENTRY = 12
"""Bytes of a stored entry: a double and which column it is in."""
