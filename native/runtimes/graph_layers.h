// Layers in another runtime's graph, such as OpenVINO's (openvino_gru.cc). Nodes find a layer by its name, and run it
// through a table of functions, so that the nodes' library contains no kernels.

#ifndef ONEGRU_NATIVE_RUNTIMES_GRAPH_LAYERS_H_
#define ONEGRU_NATIVE_RUNTIMES_GRAPH_LAYERS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

// C, because different compilers may have built the two libraries.
extern "C" {

// A call with OpenVINO's axes. A cell runs one step. All arrays are contiguous.
struct OnegruGraphCall {
  std::size_t batch_size, seq_length, input_size, num_directions, hidden_size;
  std::size_t element_size;  // of all arrays except lengths
  const void* X;             // [batch_size, seq_length, input_size]
  const void* H;             // [batch_size, num_directions, hidden_size]
  const void* lengths;       // [batch_size]; null: seq_length for each row
  std::size_t length_size;   // 4 or 8
  const void* A;             // [batch_size, seq_length, 1]; null without attention
  void* Y;                   // [batch_size, num_directions, seq_length, hidden_size]; null to omit
  void* Ho;                  // [batch_size, num_directions, hidden_size]; null to omit
  // Calls task(data, 0…count - 1) on the runtime's threads, and returns when all calls have returned.
  void (*run_tasks)(void* pool, std::size_t count, void (*task)(void* data, std::size_t index), void* data);
  void* pool;
  std::size_t threads;
};

struct OnegruGraphApi {
  // Returns the layer with a name, or null. The caller must close it.
  void* (*open)(const char* name);
  void (*close)(void* layer);
  // Runs a call. Returns null, or an error message with static lifetime.
  const char* (*run)(const void* layer, const struct OnegruGraphCall* call);
  // Records the message of a failed run. If it returns nonzero, the node must throw. Otherwise the node must fill its
  // outputs with zeros if `is_watched`, because the caller of the graph checks for failures, or else with NaN.
  int (*fail)(const char* message, int is_watched, int threads);
};
}

namespace onegru {

class Packed;

const OnegruGraphApi& GraphApi();

// Registers a layer by a name for its lifetime. Layers with the same name must be equal; the last one counts.
void NameLayer(const std::string& name, const std::shared_ptr<const Packed>& packed);

// Records the failures of watched nodes in this thread for its lifetime. Meanwhile, these nodes do not throw. Watches
// can be nested, because a signal handler may run another model.
class FailureWatch {
 public:
  FailureWatch();
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  void Record(const char* message);
  // Returns the first message, or an empty string.
  std::string Failure() const;

 private:
  FailureWatch* const outer_;
  bool has_failed_ = false;
  std::string failure_;  // empty if there was no memory for it
};

// Returns and clears the messages of failed runs that were not raised, the oldest first and each once.
std::vector<std::string> TakeLostErrors();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_GRAPH_LAYERS_H_
