"""Apply a plan for streaming to an ONNX model or an IR."""
