"""onegru inside OpenVINO: its GRU layers in compiled models, and its operators in OpenVINO programs."""

from onegru.models.replace_grus import replace_grus
from onegru.runtimes.openvino import errors, extensions

__all__ = ["errors", "extensions", "replace_grus"]
