"""Represent the operators of a model as plain data, independent of the file format."""
