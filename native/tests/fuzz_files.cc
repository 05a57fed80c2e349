// Fuzzes onegru_layer_read: it reads or rejects any bytes, and their layer runs.

#include <cstring>
#include <vector>

#include "native/c/onegru.h"
#include "native/tests/fuzz.h"

namespace onegru {

void FuzzFiles(const std::uint8_t* data, std::size_t size) {
  const auto require = [](bool good) {
    if (!good) __builtin_trap();
  };
  if (size == 0) return;
  const std::vector<std::uint8_t> bytes(data, data + size);  // detects reads after the end
  onegru_layer* layer = nullptr;
  const onegru_status status = onegru_layer_read(bytes.data(), bytes.size(), 0, nullptr, &layer);
  if (status != ONEGRU_OK) {
    require(status == ONEGRU_BAD_FILE || status == ONEGRU_OUT_OF_MEMORY);
    return require(layer == nullptr && std::strlen(onegru_error_message()) > 0);
  }
  onegru_spec spec;
  spec.size = sizeof(spec);
  require(onegru_layer_spec(layer, &spec) == ONEGRU_OK);
  onegru_stream* stream = nullptr;
  if (onegru_stream_create(layer, 2, &stream) == ONEGRU_OK) {
    const std::vector<double> X(2 * spec.input_size + 1), scores(2);
    std::vector<double> Y(2 * spec.hidden_size);
    require(onegru_stream_step(stream, X.data(), spec.attention != 0 ? scores.data() : nullptr, Y.data()) == ONEGRU_OK);
  } else {
    require(spec.direction != ONEGRU_FORWARD);
  }
  onegru_layer_destroy(layer);
  onegru_stream_destroy(stream);
}

}  // namespace onegru
