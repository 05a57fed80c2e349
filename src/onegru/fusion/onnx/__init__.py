"""Fuse ONNX models."""
