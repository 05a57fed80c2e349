"""OpenVINO's IRs, read and written."""
