"""Plan the streaming of a model."""
