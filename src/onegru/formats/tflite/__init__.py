"""Translate TensorFlow Lite files to ONNX, to find their GRUs."""
