// Reads layers from a .safetensors file that onegru.save_layers wrote. Its tensors are layers.0.W, layers.0.R,
// layers.0.B and so on. Its metadata has the specifications as JSON. See formats/checkpoints/safetensors.py.

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

// A file, or its bytes in memory.
class Source {
 public:
  Source(const void* bytes, std::size_t size) : bytes_(static_cast<const unsigned char*>(bytes)), size_(size) {}
  // The path is in UTF-8. Throws CannotRead.
  explicit Source(const char* path);

  std::uint64_t size() const { return size_; }
  // Copies `count` bytes from offset `at`. The caller has checked that they are within size().
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

// A layer from a file: its specification, and its weights in the compute type.
struct StoredLayer {
  onegru_spec spec;
  std::vector<unsigned char> W, R, B;
};

// A file with a valid header. It rejects all files that safetensors or onegru.load_layers reject.
class LayerFile {
 public:
  // Throws BadFile or CannotRead.
  explicit LayerFile(Source&& source);

  std::size_t count() const { return layers_.size(); }
  // Throws NoSuchLayer or CannotRead.
  StoredLayer Read(std::size_t index) const;

 private:
  struct Tensor {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin, bytes;

    // Whether the size of the data matches the shape, with `each` bytes per element.
    bool HasBytes(std::uint64_t each) const;
  };
  // Integer weights have a scale for each `group` numbers of a row, or for each row if `group` is 0.
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
  std::uint64_t data_ = 0;  // the offset of the tensors' bytes
  std::map<std::string, Tensor> tensors_;
  std::size_t found_ = 0;  // the number of tensors that belong to a layer
  std::vector<Layer> layers_;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_FILE_H_
