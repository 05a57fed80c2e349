"""Check the inputs of a model, choose their sizes, and draw random ones."""
