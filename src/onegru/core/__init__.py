"""Basic definitions: errors, element types, shapes, `Spec` and `Weights`."""
