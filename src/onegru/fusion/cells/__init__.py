"""What a cell is made of, and how one is recognised."""
