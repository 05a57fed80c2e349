#include "native/kernels/products/amx.h"

// This file must stay a separate translation unit, without link-time optimisation. GCC's intrinsics for loading and
// storing tiles do not declare that they access memory, so inlined into a caller, GCC could move them.

#if ONEGRU_AMX

#include <cstring>

#if ONEGRU_EMULATED_AMX
#include <cmath>

#include "native/float16.h"
#define ONEGRU_TILES
#else
#include <immintrin.h>
#define ONEGRU_TILES __attribute__((target("amx-tile,amx-int8,amx-bf16")))
#endif

namespace onegru::amx {
namespace {

// The indices of the tiles for inputs and weights. Tiles 0 … kTiles - 1 have the sums.
#define ONEGRU_INPUT_TILE 6
#define ONEGRU_WEIGHT_TILE 7

thread_local std::size_t t_rows = 0;  // the rows that this thread's tiles are configured for; 0: not configured

#if ONEGRU_EMULATED_AMX
// Emulates the instructions, for tests on other CPUs.
thread_local unsigned char t_tiles[8][kRows][64];

std::size_t RowsOf(int tile) { return tile == ONEGRU_WEIGHT_TILE ? kInputs / 4 : t_rows; }

void LoadConfig(std::size_t) {}
void ReleaseTiles() {}
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
void _tile_zero(int tile) { std::memset(t_tiles[tile], 0, sizeof(t_tiles[tile])); }
void _tile_loadd(int tile, const void* from, std::size_t stride) {
  for (std::size_t r = 0; r < RowsOf(tile); ++r) {
    std::memcpy(t_tiles[tile][r], static_cast<const char*>(from) + r * stride, 64);
  }
}
void _tile_stored(int tile, void* to, std::size_t stride) {
  for (std::size_t r = 0; r < RowsOf(tile); ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, t_tiles[tile][r], 64);
  }
}
void _tile_dpbusd(int sums, int inputs, int weights) {
  for (std::size_t r = 0; r < t_rows; ++r) {
    for (std::size_t channel = 0; channel < kChannels; ++channel) {
      std::uint32_t sum;  // wraps around, as in the instruction
      std::memcpy(&sum, &t_tiles[sums][r][4 * channel], 4);
      for (std::size_t k = 0; k < kInputs; ++k) {
        const auto weight = static_cast<std::int8_t>(t_tiles[weights][k / 4][4 * channel + k % 4]);
        sum += static_cast<std::uint32_t>(t_tiles[inputs][r][k] * weight);
      }
      std::memcpy(&t_tiles[sums][r][4 * channel], &sum, 4);
    }
  }
}
#undef _tile_dpbf16ps
void _tile_dpbf16ps(int sums, int inputs, int weights) {
  for (std::size_t r = 0; r < t_rows; ++r) {
    for (std::size_t channel = 0; channel < kChannels; ++channel) {
      float chains[2] = {}, sum;  // of even and of odd inputs
      for (std::size_t k = 0; k < kInputs / 2; ++k) {
        std::uint16_t input, weight;
        std::memcpy(&input, &t_tiles[inputs][r][2 * k], 2);
        std::memcpy(&weight, &t_tiles[weights][k / 2][4 * channel + 2 * (k % 2)], 2);
        chains[k % 2] = std::fma(FromBFloat16Bits(input), FromBFloat16Bits(weight), chains[k % 2]);
      }
      std::memcpy(&sum, &t_tiles[sums][r][4 * channel], 4);
      sum += chains[0] + chains[1];
      std::memcpy(&t_tiles[sums][r][4 * channel], &sum, 4);
    }
  }
}
#else
ONEGRU_TILES void LoadConfig(std::size_t rows) {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {};
    std::uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 8; ++tile) {
    config.bytes[tile] = 64;
    config.rows[tile] = static_cast<std::uint8_t>(tile == ONEGRU_WEIGHT_TILE ? kInputs / 4 : rows);
  }
  // GCC's intrinsic declares that it reads only 8 of these bytes.
  asm volatile("ldtilecfg %0" ::"m"(config));
}
ONEGRU_TILES void ReleaseTiles() { _tile_release(); }
#endif

}  // namespace

void Configure(std::size_t rows) {
  if (t_rows == rows) return;
  t_rows = rows;
  LoadConfig(rows);
}

void Release() {
  if (t_rows == 0) return;
  t_rows = 0;
  ReleaseTiles();
}

namespace {

template <bool kIsBFloat16>
ONEGRU_TILES void MultiplyAs(const TileProduct& p) {
  const std::size_t sums = p.panels * p.gates, stride = p.gates * kChannels * 4;
  const std::int8_t* weights[kTiles] = {};
  for (std::size_t i = 0; i < sums; ++i) {
    weights[i] = p.weights + i / p.gates * p.panel_stride + i % p.gates * kChannels * 4;
  }
  // Prefetches an equal part of the next bytes with each tile of inputs.
  const std::int8_t* next = p.next;
  const std::int8_t* const end = next + p.next_bytes;
  const std::size_t part = p.next_bytes / ((p.words + kInputs / 4 - 1) / (kInputs / 4)) + 63;
  const auto fetch = [&]() ONEGRU_TILES {
    const std::int8_t* const to = end - next < static_cast<std::ptrdiff_t>(part) ? end : next + part;
    for (; next < to; next += 64) __builtin_prefetch(next, 0, 2);
  };
#define ONEGRU_MULTIPLY(i)                                    \
  if constexpr (kIsBFloat16) {                                \
    _tile_dpbf16ps(i, ONEGRU_INPUT_TILE, ONEGRU_WEIGHT_TILE); \
  } else {                                                    \
    _tile_dpbusd(i, ONEGRU_INPUT_TILE, ONEGRU_WEIGHT_TILE);   \
  }
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  if (p.inputs == 1) {
    for (std::size_t k = 0; k < p.words; k += kInputs / 4) {
      fetch();
      _tile_loadd(ONEGRU_INPUT_TILE, p.input[0] + 4 * k, p.input_stride);
#define ONEGRU_SUM(i)                                                 \
  if (i < sums) {                                                     \
    _tile_loadd(ONEGRU_WEIGHT_TILE, weights[i] + k * stride, stride); \
    ONEGRU_MULTIPLY(i);                                               \
  }
      ONEGRU_SUM(0)
      ONEGRU_SUM(1)
      ONEGRU_SUM(2)
      ONEGRU_SUM(3)
      ONEGRU_SUM(4)
      ONEGRU_SUM(5)
#undef ONEGRU_SUM
    }
  } else {
    // Forward with one tile of inputs and back with the other, so that the weights at the turn are loaded once.
    for (std::size_t k = 0; k < p.words; k += kInputs / 4) {
      fetch();
#define ONEGRU_LOAD(i) _tile_loadd(ONEGRU_WEIGHT_TILE, weights[i] + k * stride, stride)
#define ONEGRU_SUM(i) ONEGRU_MULTIPLY(i)
      _tile_loadd(ONEGRU_INPUT_TILE, p.input[0] + 4 * k, p.input_stride);
      ONEGRU_LOAD(0);
      ONEGRU_SUM(0);
      if (sums > 1) {
        ONEGRU_LOAD(1);
        ONEGRU_SUM(1);
      }
      if (sums > 2) {
        ONEGRU_LOAD(2);
        ONEGRU_SUM(2);
      }
      _tile_loadd(ONEGRU_INPUT_TILE, p.input[1] + 4 * k, p.input_stride);
      if (sums > 2) {
        ONEGRU_SUM(5);
        ONEGRU_LOAD(1);
      }
      if (sums > 1) {
        ONEGRU_SUM(4);
        ONEGRU_LOAD(0);
      }
      ONEGRU_SUM(3);
#undef ONEGRU_LOAD
#undef ONEGRU_SUM
    }
  }
#define ONEGRU_STORE(tile, inputs, i) \
  if (i < sums) _tile_stored(tile, p.sum[inputs] + i * kChannels, p.sum_stride);
  ONEGRU_STORE(0, 0, 0)
  ONEGRU_STORE(1, 0, 1)
  ONEGRU_STORE(2, 0, 2)
  if (p.inputs == 1) {
    ONEGRU_STORE(3, 0, 3)
    ONEGRU_STORE(4, 0, 4)
    ONEGRU_STORE(5, 0, 5)
  } else {
    ONEGRU_STORE(3, 1, 0)
    ONEGRU_STORE(4, 1, 1)
    ONEGRU_STORE(5, 1, 2)
  }
#undef ONEGRU_STORE
#undef ONEGRU_MULTIPLY
}

}  // namespace

ONEGRU_TILES void Multiply(const TileProduct& product) {
  product.is_bfloat16 ? MultiplyAs<true>(product) : MultiplyAs<false>(product);
}

}  // namespace onegru::amx

#endif  // ONEGRU_AMX
