"""What everything else is made of: errors, element types, shapes, `Spec` and `Weights`."""
