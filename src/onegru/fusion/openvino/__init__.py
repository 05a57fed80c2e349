"""Fuse and edit OpenVINO IRs."""
