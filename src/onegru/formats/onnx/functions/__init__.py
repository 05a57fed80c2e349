"""The functions of ONNX models: those of others, and those that say what AUGRU nodes compute."""
