"""The reference ladder of our own: small models trained on generated text, whose answers are known beforehand."""
