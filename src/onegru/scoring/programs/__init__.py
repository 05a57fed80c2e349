"""What computes the outputs of a batch: layers, or a whole model."""
