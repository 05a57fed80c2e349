// Layers in another runtime's graph: its nodes know them by name, and run them through a table of functions, so that
// the nodes' library needs no kernels. OpenVINO's operator (openvino_gru.cc) is one such node.

#ifndef ONEGRU_NATIVE_RUNTIMES_GRAPH_LAYERS_H_
#define ONEGRU_NATIVE_RUNTIMES_GRAPH_LAYERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// C, as different compilers may have built the two libraries.
extern "C" {

// A call in OpenVINO's axes; a cell's is one of one step. All arrays are contiguous.
struct OnegruGraphCall {
  std::size_t batch_size, seq_length, input_size, num_directions, hidden_size;
  std::size_t element_size;  // of X and all else but lengths
  const void* X;             // [batch_size, seq_length, input_size]
  const void* H;             // [batch_size, num_directions, hidden_size]
  const void* lengths;       // [batch_size]; null for all seq_length
  std::size_t length_size;   // 4 or 8
  const void* A;             // [batch_size, seq_length, 1]; null without attention
  void* Y;                   // [batch_size, num_directions, seq_length, hidden_size]; null if not wanted
  void* Ho;                  // [batch_size, num_directions, hidden_size]; null if not wanted
  // The runtime's own threads: calls task(data, 0…count - 1), and returns when all have returned.
  void (*run_tasks)(void* pool, std::size_t count, void (*task)(void* data, std::size_t index), void* data);
  void* pool;
  std::size_t threads;
};

struct OnegruGraphApi {
  // The layer of a name; null if there is none. To be closed.
  void* (*open)(const char* name);
  void (*close)(void* layer);
  // Null, or a message with static lifetime.
  const char* (*run)(const void* layer, const struct OnegruGraphCall* call);
  // Takes the message of a run that failed. Nonzero where the node shall throw, else its outputs are to be filled: with
  // zeros if `is_watched`, as whoever runs the graph then knows, or with NaN.
  int (*fail)(const char* message, int is_watched, int threads);
};
}

namespace onegru {

class Packed;

const OnegruGraphApi& GraphApi();

// Lets graphs find a layer by a name, as long as it lives. Equal names are for equal layers: the last one counts.
void NameLayer(const std::string& name, const std::shared_ptr<const Packed>& packed);

// Keeps the failures of watched nodes that run in this thread from now on, which throw nothing meanwhile.
void WatchFailures();

// Ends that, and returns the first message; empty if there is none.
std::string WatchedFailure();

// Returns and clears the messages of failed runs that were not raised, the oldest first and each once.
std::vector<std::string> TakeLostErrors();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_RUNTIMES_GRAPH_LAYERS_H_
