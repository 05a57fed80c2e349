"""The operators of each dialect, as data: names, attributes, inputs and outputs."""
