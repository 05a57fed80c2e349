"""GRUs from and to PyTorch, Keras and Flax; each is imported only where one of its own objects is made."""
