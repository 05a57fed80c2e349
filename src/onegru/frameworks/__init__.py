"""Convert GRUs from and to PyTorch, Keras and Flax, each imported only if it is needed."""
