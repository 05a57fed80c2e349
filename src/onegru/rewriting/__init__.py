"""ONNX models rewritten, their function kept."""
