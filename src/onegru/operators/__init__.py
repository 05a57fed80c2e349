"""The operators of the specifications as data, and the one way from there to the canonical form."""
