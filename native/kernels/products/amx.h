// Products with AMX, Intel's instructions for tiles. They multiply up to 16 rows of 64 int8 or 32 bfloat16 inputs by
// the same inputs of 16 channels.
//
// The AVX-512 kernels use AMX for several rows of int8, and for any number of rows of bfloat16. Results do not depend
// on AMX.

#ifndef ONEGRU_NATIVE_KERNELS_PRODUCTS_AMX_H_
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_AMX_H_

#include <cstddef>
#include <cstdint>

namespace onegru::amx {

inline constexpr std::size_t kRows = 16;      // the most rows of a tile
inline constexpr std::size_t kChannels = 16;  // channels of a tile: the units of a panel
inline constexpr std::size_t kInputs = 64;    // int8 inputs of a tile
inline constexpr std::size_t kTiles = 6;      // tiles of sums; one more is for inputs, one for weights
inline constexpr std::size_t kBytesReadPastPanel = (kInputs - 4) * 3 * kChannels;  // with three gates

// A product of tiles of inputs with panels of gates. It has inputs · panels · gates tiles of sums, at most kTiles.
struct TileProduct {
  bool is_bfloat16;               // whether inputs and weights are bfloat16, with float32 sums
  std::size_t inputs;             // 1 or 2 tiles
  const unsigned char* input[2];  // the rows of inputs, with 128 added to int8, and zeros after the last input
  std::size_t input_stride;       // bytes from row to row
  std::int32_t* sum[2];           // the sums of each input tile, with rows [panel][gate][channel]
  std::size_t sum_stride;         // bytes from row to row
  const std::int8_t* weights;     // the first panel; see packed.h
  std::size_t panels;
  std::size_t panel_stride;  // bytes from panel to panel
  std::size_t gates;
  std::size_t words;        // of a row of inputs: four int8 or two bfloat16 inputs each
  const std::int8_t* next;  // the next matrix, which is prefetched into the second-level cache
  std::size_t next_bytes;   // 0: no prefetch
};

// Configures this thread's tiles for `rows` rows, until Release.
void Configure(std::size_t rows);
// Computes the sums. In int8, it reads up to kInputs - 4 inputs after each panel (kBytesReadPastPanel bytes), and
// multiplies them by the zeros of the inputs.
void Multiply(const TileProduct& product);
#if ONEGRU_AMX
// Releases this thread's tiles, if it has any.
void Release();
#else
inline void Release() {}
#endif

}  // namespace onegru::amx

#endif  // ONEGRU_NATIVE_KERNELS_PRODUCTS_AMX_H_
