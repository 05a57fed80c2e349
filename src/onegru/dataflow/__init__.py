"""The operators of a model as plain data, the same for every file format."""
