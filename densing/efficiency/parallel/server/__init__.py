"""A server and its workers: who computes what, which messages suffice, and the run."""
