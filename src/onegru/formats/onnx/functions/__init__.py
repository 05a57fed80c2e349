"""Functions of ONNX models: inline other functions, and define AUGRU nodes."""
