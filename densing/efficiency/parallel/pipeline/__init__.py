"""Layers in stages, one per rank: turns, what is sent between stages, and the training of one stage.

``turns`` and ``coding`` need no torch; plans and runs use the same.
"""
