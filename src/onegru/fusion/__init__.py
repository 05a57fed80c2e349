"""GRUs that are decomposed into other operators: found, checked, replaced with GRU nodes."""
