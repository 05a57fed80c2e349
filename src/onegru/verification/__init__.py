"""Whether a model computes what it should, and where it first does not."""
