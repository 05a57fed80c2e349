"""The GRU layer, its streams and stacks, and the operators as functions."""
