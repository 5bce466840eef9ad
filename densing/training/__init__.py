"""The reference ladder of our own: small models trained on generated text, so that the answer of a check is known beforehand."""
