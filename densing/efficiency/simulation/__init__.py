"""A task graph on a cluster becomes a timeline; the only physics."""
