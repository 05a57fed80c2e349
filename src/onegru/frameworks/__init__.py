"""GRUs from and to PyTorch, Keras and Flax; each is imported only where its own objects is made."""
