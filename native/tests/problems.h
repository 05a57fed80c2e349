// Random problems for the kernels, plain loops that solve them in double, and functions for all tests.

#ifndef ONEGRU_NATIVE_TESTS_PROBLEMS_H_
#define ONEGRU_NATIVE_TESTS_PROBLEMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "native/kernel.h"

namespace onegru {

// Counts a check, and prints it if it failed.
void Check(bool good, const char* what, std::size_t problem = 0, const char* target = "all", std::size_t threads = 0);
// Prints how many checks passed. Returns whether all did.
bool AllGood();

// The generator SplitMix64, which returns the same numbers on all systems.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  std::size_t Below(std::size_t n) { return static_cast<std::size_t>(Next() % n); }
  bool OneIn(std::size_t n) { return Below(n) == 0; }
  // Returns a multiple of 2^-20 in [-1, 1).
  double Unit() { return (static_cast<double>(Next() >> 43) - 0x1p20) * 0x1p-20; }

 private:
  std::uint64_t state_;
};

double Load(ElementType type, const void* from);
void Store(ElementType type, double value, void* to);
double Rounded(ElementType type, double value);
double Epsilon(ElementType type);
ElementType ComputedType(ElementType type);

inline constexpr unsigned char kUntouched = 0xa5;

// Rows in memory of exactly the needed size, so that sanitizers detect accesses after its end.
struct Array {
  ElementType type = ElementType::kFloat32;
  std::size_t sizes[4] = {};  // time, direction, row, element
  Rows rows;
  std::unique_ptr<unsigned char[]> memory;
  std::size_t bytes = 0;

  // gap: bytes between rows. swapped: the batch axis comes before the time axis.
  void Make(ElementType t, std::size_t time, std::size_t directions, std::size_t count, std::size_t elements,
            std::size_t gap = 0, bool swapped = false) {
    type = t;
    sizes[0] = time, sizes[1] = directions, sizes[2] = count, sizes[3] = elements;
    const std::size_t row = elements * SizeOf(t) + gap;
    bytes = time * directions * count * row;
    memory = std::make_unique<unsigned char[]>(std::max<std::size_t>(bytes, 1));
    std::memset(memory.get(), kUntouched, bytes);
    rows.data = reinterpret_cast<char*>(memory.get());
    rows.row_stride = static_cast<std::ptrdiff_t>(swapped ? row * directions * time : row);
    rows.direction_stride = static_cast<std::ptrdiff_t>(swapped ? row : row * count);
    rows.time_stride = static_cast<std::ptrdiff_t>(swapped ? row * directions : row * count * directions);
  }

  char* At(std::size_t t, std::size_t d, std::size_t b, std::size_t i) const {
    return rows.at(t, d, b) + i * SizeOf(type);
  }
  double Get(std::size_t t, std::size_t d, std::size_t b, std::size_t i) const { return Load(type, At(t, d, b, i)); }

  template <class Body>
  void ForEach(Body&& body) const {
    for (std::size_t t = 0; t < sizes[0]; ++t)
      for (std::size_t d = 0; d < sizes[1]; ++d)
        for (std::size_t b = 0; b < sizes[2]; ++b)
          for (std::size_t i = 0; i < sizes[3]; ++i) body(t, d, b, i);
  }
  void Fill(Random& random, double scale) {
    ForEach([&](auto t, auto d, auto b, auto i) { Store(type, scale * random.Unit(), At(t, d, b, i)); });
  }
  // Whether the gaps between elements are unchanged.
  bool GapsUntouched() const {
    std::vector<bool> element(bytes);
    ForEach([&](auto t, auto d, auto b, auto i) {
      const auto at = static_cast<std::size_t>(At(t, d, b, i) - rows.data);
      std::fill_n(element.begin() + static_cast<std::ptrdiff_t>(at), SizeOf(type), true);
    });
    for (std::size_t at = 0; at < bytes; ++at)
      if (!element[at] && memory[at] != kUntouched) return false;
    return true;
  }
};

// The types of a layer: of its tensors, and of its stored matrices.
struct Types {
  ElementType type, storage;
  std::size_t planes = 1, group = 0;  // for int8
  bool rounds_inputs = false;
};
inline constexpr Types kTypes[] = {
    {ElementType::kFloat32, ElementType::kFloat32},
    {ElementType::kFloat64, ElementType::kFloat64},
    {ElementType::kFloat16, ElementType::kFloat16},
    {ElementType::kBFloat16, ElementType::kBFloat16},
    {ElementType::kFloat32, ElementType::kFloat16},
    {ElementType::kFloat32, ElementType::kBFloat16},
    {ElementType::kFloat32, ElementType::kInt8},
    {ElementType::kFloat32, ElementType::kInt8, 2},
    {ElementType::kFloat32, ElementType::kInt8, 1, 4},
    {ElementType::kFloat32, ElementType::kInt8, 2, 32},
    {ElementType::kFloat32, ElementType::kBFloat16, 1, 0, true},
};
// Problems from kRoundedProblems on have the last type. Other problems have the other types, with a common hash.
inline constexpr std::size_t kRoundedTypes = std::size(kTypes) - 1, kRoundedProblems = 1000000;
inline void SetTypes(Spec& spec, std::size_t index) {
  spec.type = kTypes[index].type;
  spec.storage = kTypes[index].storage;
  spec.planes = kTypes[index].planes;
  spec.group = kTypes[index].group;
  spec.rounds_inputs = kTypes[index].rounds_inputs;
}

struct Problem {
  Spec spec{};
  std::size_t T = 0, B = 0;
  std::vector<double> W, R, bias;  // numbers of spec.type
  Array X, initial_h, attention, state;
  std::vector<std::int64_t> lengths;
  std::vector<std::int32_t> state_rows;
  bool has_initial_h = false, has_lengths = false, wants_Y = true, wants_Y_h = true, is_stream = false;
  std::size_t y_gap = 0;
  bool swapped = false;

  std::size_t Length(std::size_t b) const { return has_lengths ? static_cast<std::size_t>(lengths[b]) : T; }
};

struct Shape {
  std::size_t T, B, I, H, D;
};
// Returns a problem in float32 with the usual activations and small weights.
Problem MakeUsualProblem(const Shape& shape, bool linear_before_reset, Random& random);

// Returns a problem. Every tenth is large enough for several threads, by rows or by units.
Problem MakeProblem(std::size_t number);

struct Expected {
  std::vector<double> Y, Y_h;  // [T, D, B, H], [D, B, H]
  double largest = 1;          // of all gates and states
};

// Solves a problem with plain loops.
Expected Plainly(const Problem& p);

struct Result {
  Array Y, Y_h, state;
};

// Returns untouched memory for the outputs of a problem, and a copy of its states.
Result MakeResult(const Problem& p);

std::shared_ptr<const Packed> Pack(const Problem& p, std::size_t target);
Result RunOnce(const Problem& p, const std::shared_ptr<const Packed>& packed, const ForeignPool* pool = nullptr,
               CancellationToken* token = nullptr);
bool SameBits(const Result& a, const Result& b);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_PROBLEMS_H_
