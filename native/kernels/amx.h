// Products by AMX, Intel's instructions for tiles: up to 16 rows of 64 inputs in int8, or 32 in bfloat16, times as many
// inputs of 16 channels.
//
// The kernels for AVX-512 multiply by them: in int8 where there are several rows, in bfloat16 for any rows. Results do
// not depend on AMX.

#ifndef ONEGRU_NATIVE_KERNELS_AMX_H_
#define ONEGRU_NATIVE_KERNELS_AMX_H_

#include <cstddef>
#include <cstdint>

namespace onegru::amx {

inline constexpr std::size_t kRows = 16;      // the most of a tile
inline constexpr std::size_t kChannels = 16;  // of a tile: the units of a panel
inline constexpr std::size_t kInputs = 64;    // of a tile in int8
inline constexpr std::size_t kTiles = 6;      // of sums; one more is for inputs, one for weights
inline constexpr std::size_t kBytesBehind = (kInputs - 4) * 3 * kChannels;  // of three gates

// Tiles of inputs times panels of some gates each: inputs · panels · gates tiles of sums, at most kTiles.
struct Block {
  bool is_bfloat16;               // inputs and weights; sums are then float32
  std::size_t inputs;             // 1 or 2 tiles
  const unsigned char* input[2];  // the rows of inputs, with 128 added to int8, and zeros after the last input
  std::size_t input_stride;       // bytes from row to row
  std::int32_t* sum[2];           // where the sums of each go, a row as [panel][gate][channel]
  std::size_t sum_stride;         // bytes from row to row
  const std::int8_t* weights;     // the first panel; see packed.h
  std::size_t panels;
  std::size_t panel_stride;  // bytes from panel to panel
  std::size_t gates;
  std::size_t words;        // of a row of inputs: of four int8, or two bfloat16
  const std::int8_t* next;  // the next matrix, which is prefetched into the second-level cache
  std::size_t next_bytes;   // 0 where nothing is
};

// Configures this thread's tiles for `rows` rows, until Release.
void Configure(std::size_t rows);
// Computes the sums. In int8, reads up to kInputs - 4 inputs past each panel, kBytesBehind bytes, which the zeros of
// the inputs multiply.
void Multiply(const Block& block);
#if ONEGRU_AMX
// Does nothing on a thread without tiles.
void Release();
#else
inline void Release() {}
#endif

}  // namespace onegru::amx

#endif  // ONEGRU_NATIVE_KERNELS_AMX_H_
