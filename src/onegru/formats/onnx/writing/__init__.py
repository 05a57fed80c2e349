"""Write ONNX models, and change them."""
