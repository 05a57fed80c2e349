"""Define errors, element types, shapes, `Spec` and `Weights`."""
