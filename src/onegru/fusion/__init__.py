"""Find decomposed GRUs, check them, and replace them by GRU nodes."""
