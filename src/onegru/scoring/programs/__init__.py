"""Programs that compute the outputs of a batch: layers, or a whole model."""
