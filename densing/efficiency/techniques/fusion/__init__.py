"""FusionLLM: a pipeline over unequal devices at several sites, cut and compressed by what its links allow."""
