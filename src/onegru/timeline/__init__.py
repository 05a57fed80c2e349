"""Follow the time axis through a model, and find the states that a stream needs."""
