// Layers in a .safetensors file as onegru.save_layers writes it: tensors layers.0.W, layers.0.R, layers.0.B and so on,
// and what else makes the layers as JSON in its metadata. See src/onegru/formats/checkpoints/safetensors.py.

#ifndef ONEGRU_NATIVE_C_FILE_H_
#define ONEGRU_NATIVE_C_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
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
  // The path is in UTF-8. Throws CannotRead.
  explicit Source(const char* path);

  std::uint64_t size() const { return size_; }
  // The caller has compared with the size.
  void Read(std::uint64_t at, std::size_t count, void* to) const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const unsigned char* bytes_ = nullptr;
  std::string name_;  // of the file, for messages
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t size_ = 0;
};

// A layer of a file: its specification, and its weights in the type that is computed in.
struct LayerOfFile {
  onegru_spec spec;
  std::vector<unsigned char> W, R, B;
};

// A file with a checked header. It refuses all files that safetensors or onegru.load_layers refuse.
class LayerFile {
 public:
  // Throws BadFile or CannotRead.
  explicit LayerFile(Source&& source);

  std::size_t count() const { return layers_.size(); }
  // Throws NoSuchLayer or CannotRead.
  LayerOfFile Read(std::size_t index) const;

 private:
  struct Tensor {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin, bytes;

    // Whether its data has the size of its shape, with elements of this many bytes.
    bool HasBytes(std::uint64_t each) const;
  };
  // Integers have scales: one for each `group` numbers of a row, or with 0 for all of them.
  struct Weight {
    const Tensor* numbers = nullptr;
    const Tensor* scales = nullptr;
    std::uint32_t group = 0;
  };
  struct Layer {
    onegru_spec spec;
    Weight W, R, B;
  };

  void ReadTensors(const Json& header);
  void CheckPlaces() const;
  void ReadDocument(const Json& document);
  Weight FindWeight(const std::string& name, const onegru_spec& spec, const std::vector<std::uint64_t>& shape,
                    bool may_be_integers);
  void FindScales(const std::string& name, Weight& weight);
  const Tensor& Find(const std::string& name);
  std::vector<unsigned char> Numbers(const Weight& weight) const;
  template <class T>
  std::vector<T> Read(const Tensor& tensor) const;

  Source source_;
  std::uint64_t data_ = 0;  // where the tensors' bytes begin
  std::map<std::string, Tensor> tensors_;
  std::size_t found_ = 0;  // tensors that belong to a layer
  std::vector<Layer> layers_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_FILE_H_
