"""onegru inside OpenVINO: its GRU layers in compiled models, and its operators in OpenVINO's own programs."""

from onegru.models.exchange import exchange
from onegru.runtimes.openvino import errors, extensions

__all__ = ["errors", "exchange", "extensions"]
