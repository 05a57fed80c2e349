"""Operators of a cell's sum z∘h + (1 - z)∘n. The search visits only these; the algebra decides."""

#: An element-wise product.
PRODUCT = "Mul"
#: The last operators of a sum.
SUMS = ("Add", "Sub", "Sum", "Where")
#: The operators before the last, unless it is a Where. Div multiplies by a gate 1 / (1 + e^-x).
SUMMANDS = (PRODUCT, "Div")
#: The last operators of a sum without z∘h, from a zero state.
SUMS_FROM_ZERO = ("Add", "Sub", PRODUCT)
#: The operators that read the old state: z∘h, h - n, or a choice by a mask.
READERS_OF_STATE = (PRODUCT, "Sub", "Where")
#: The last operators that apply a mask to a state: a choice, or a sum of products.
MASKING = ("Where", "Add")
