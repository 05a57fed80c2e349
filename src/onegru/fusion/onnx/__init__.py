"""ONNX models as flows, and back."""
