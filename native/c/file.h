// Layers in a .safetensors file as onegru.save_layers writes it: tensors layers.0.W, layers.0.R, layers.0.B and so on,
// and what else makes the layers as JSON in its metadata. See src/onegru/formats/safetensors.py.

#ifndef ONEGRU_NATIVE_C_FILE_H_
#define ONEGRU_NATIVE_C_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/c/json.h"
#include "native/c/onegru.h"

namespace onegru {

class CannotRead : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
class NoSuchLayer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bytes of a file, or of memory.
class Source {
 public:
  Source(const void* bytes, std::size_t size) : bytes_(static_cast<const unsigned char*>(bytes)), size_(size) {}
  // Throws CannotRead.
  explicit Source(const char* path);

  std::uint64_t size() const { return size_; }
  // The caller has compared with the size.
  void Read(std::uint64_t at, std::size_t count, void* to);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const unsigned char* bytes_ = nullptr;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t size_ = 0;
};

// A layer of a file: its specification, not yet checked, and its weights in the type that is computed in.
struct LayerOfFile {
  onegru_spec spec;
  std::vector<unsigned char> W, R, B;
};

// Throws BadFile, NoSuchLayer or CannotRead.
LayerOfFile ReadLayer(Source& source, std::size_t index);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_FILE_H_
