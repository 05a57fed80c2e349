"""Check the results of a model, and locate the first GRU node with a wrong result."""
