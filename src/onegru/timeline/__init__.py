"""The axis of time through a model: what an operator does along it, and what a stream has to carry."""
