"""GRUs that are written out in other operators: found, proved, replaced by GRU nodes."""
