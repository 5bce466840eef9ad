"""Everything of the project that wants a GPU, in stages of minutes that each leave a record: see docs/gpu.md."""
