"""What everything else builds on: errors, element types, shapes, `Spec` and `Weights`."""
