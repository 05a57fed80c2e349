"""The time axis through a model: what an operator does along it, and what a stream has to carry."""
