"""The other source of scores: benchmarks run on real models by lm-eval, stored, read back and turned into losses."""
