"""What the specifications say, as data, and the one way from there to the canonical form."""
