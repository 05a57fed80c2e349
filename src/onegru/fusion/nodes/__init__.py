"""The node that a recurrence becomes, and what leads its inputs there."""
