// Adds products of rows of inputs with a tile's panels of a packed matrix to the tile's sums.

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "native/kernels/products/bfloat16-inl.h"
#include "native/kernels/products/int8-inl.h"
#include "native/kernels/item-inl.h"
#include "native/kernels/products/multiply-inl.h"
#include "native/kernels/products/tile-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_SUMS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_SUMS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PRODUCTS_TILE_SUMS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// Gets the addresses of a tile's panels in a packed matrix with K inputs.
template <class C, class S, class Tile>
HWY_INLINE void PanelsOf(const ItemState<C, S>& s, const void* matrix, size_t K, const Tile& tile,
                         const S* (&panels)[Tile::kPanels]) {
#pragma GCC unroll 16
  for (size_t p = 0; p < Tile::kPanels; ++p) {
    panels[p] = static_cast<const S*>(matrix) + s.geometry.offset(tile.panel + p, K, Tile::kGates);
  }
}

// Adds inputs · a packed matrix of K inputs to the tile's sums.
template <class C, class S, class Tile>
HWY_INLINE void AddProduct(const ItemState<C, S>& s, const void* matrix, size_t K, const C* const* inputs, Tile& tile) {
  const S* panels[Tile::kPanels];
  PanelsOf(s, matrix, K, tile, panels);
  Multiply<Tile::kRows, Tile::kPanels, Tile::kGates>(tile.d, K, inputs + tile.row, panels, tile.width, tile.sums);
}

#if ONEGRU_WORDS
// AddGroup for inputs that are words: `count` inputs from `first` on.
template <class C, class S, class Tile, size_t kPanels, size_t kVectors, class Start>
HWY_INLINE void AddWords(const ItemState<C, S>& s, const std::int8_t* const (&panels)[kPanels],
                         const size_t (&channel)[kVectors], const Channels& channels, size_t K,
                         const unsigned char* inputs, size_t first, size_t count, Tile& tile, Start&& start) {
  constexpr size_t kLanes = kLanesOf<C>;
  const auto d = tile.d;
  const hn::RebindToSigned<std::remove_const_t<decltype(d)>> di;
  const size_t stride = QuantizedRow(kPlanesOf<S>, K), parts = IsSplit(s.spec, K) ? 2 : 1;
  const unsigned char* words[Tile::kRows];
  hn::Vec<decltype(di)> sums[Tile::kRows][kVectors];
  HWY_ALIGN C high[Tile::kRows * kVectors * kLanes];
  for (size_t part = 0; part < parts; ++part) {
#pragma GCC unroll 16
    for (size_t r = 0; r < Tile::kRows; ++r) {
      words[r] = inputs + r * stride + kQuantizedHeader + 2 * (part * QuantizedPlane(K) + first);
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) {
        if (part != 0) hn::Store(hn::ConvertTo(d, sums[r][v]), d, high + (r * kVectors + v) * kLanes);
        sums[r][v] = hn::Zero(di);
      }
    }
    MultiplyWords<Tile::kRows, kPanels, Tile::kGates>(di, count / kQuad, words, panels, tile.width, sums);
  }
  start();
#pragma GCC unroll 16
  for (size_t r = 0; r < Tile::kRows; ++r) {
    const auto row_scale = hn::Set(d, ScaleOf(inputs + r * stride));
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      auto sum = hn::ConvertTo(d, sums[r][v]);
      if (HWY_UNLIKELY(parts == 2)) sum = JoinPlanes(d, hn::Load(d, high + (r * kVectors + v) * kLanes), sum);
      const auto scale = hn::Mul(row_scale, hn::LoadU(d, channels.scale + channel[v]));
      tile.sums[r][v] = MultiplyAdd(scale, sum, tile.sums[r][v]);
    }
  }
}
#endif

// Adds a group's scaled int8 products: of the inputs from group · s.spec.group on, or of all inputs if there is one
// group. Before that, start() sets the tile's sums, as soon as registers are free for them.
template <class C, class S, class Tile, class Start>
HWY_INLINE void AddGroup(const ItemState<C, S>& s, const void* matrix, const Channels& channels, size_t K,
                         const unsigned char* inputs, Tile& tile, size_t group, size_t groups, Start&& start) {
  constexpr size_t kPlanes = kPlanesOf<S>, kGates = Tile::kGates, kLanes = kLanesOf<C>;
  // int8 with two planes has two sums for each row.
  constexpr size_t kPlaneRows = Tile::kRows * kSumsPerGateOf<S>, kVectors = Tile::kPanels * kGates;
  const auto d = tile.d;
  const hn::RebindToSigned<std::remove_const_t<decltype(d)>> di;
  const size_t stored_K = RoundUpTo(kQuad, K), stride = QuantizedRow(kPlanes, K);
  const size_t first = group * s.spec.group, count = groups == 1 ? stored_K : HWY_MIN(s.spec.group, stored_K - first);
  const unsigned char* planes[kPlaneRows];
  const std::int8_t* panels[Tile::kPanels];
  size_t channel[kVectors];
  hn::Vec<decltype(di)> sums[kPlaneRows][kVectors];
#pragma GCC unroll 16
  for (size_t p = 0; p < Tile::kPanels; ++p) {
    const size_t units = p + 1 < Tile::kPanels ? kLanes : size_t{tile.width};
    panels[p] = static_cast<const std::int8_t*>(matrix) + s.geometry.offset(tile.panel + p, stored_K, kGates) +
                first * kGates * units;
#pragma GCC unroll 4
    for (size_t g = 0; g < kGates; ++g) {
      channel[p * kGates + g] = (((tile.panel + p) * groups + group) * kGates + g) * kLanes;
    }
  }
#if ONEGRU_WORDS
  if constexpr (kInWords<S>) {
    return AddWords(s, panels, channel, channels, K, inputs + tile.row * stride, first, count, tile, start);
  }
#endif
#pragma GCC unroll 16
  for (size_t r = 0; r < kPlaneRows; ++r) {
    planes[r] = PlaneOf(inputs + (tile.row + r / kPlanes) * stride, K, r % kPlanes) + first;
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = kInputOffset == 0 ? hn::Zero(di) : hn::LoadU(di, channels.correction + channel[v]);
    }
  }
  const bool is_summed = kHasAmx<S> && s.amx_sums.from != nullptr;
  if (is_summed) {
    const std::int32_t* const from = s.amx_sums.from + (tile.row - s.amx_sums.row) * kPlanes * s.amx_sums.pitch +
                                     (tile.panel - s.amx_sums.panel) * kGates * kLanes;
#pragma GCC unroll 16
    for (size_t r = 0; r < kPlaneRows; ++r) {
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::Add(sums[r][v], hn::LoadU(di, from + r * s.amx_sums.pitch + v * kLanes));
      }
    }
  } else {
    MultiplyQuads<kPlaneRows, Tile::kPanels, kGates>(di, count / kQuad, planes, panels, tile.width, sums);
  }
  start();
#pragma GCC unroll 16
  for (size_t r = 0; r < Tile::kRows; ++r) {
    const auto row_scale = hn::Set(d, ScaleOf(inputs + (tile.row + r) * stride));
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      const auto scale = hn::Mul(row_scale, hn::LoadU(d, channels.scale + channel[v]));
      tile.sums[r][v] = AddScaled<kPlanes>(d, scale, &sums[r * kPlanes], v, tile.sums[r][v]);
    }
  }
}

// Sets the tile's sums by start(), then adds the products of int8 inputs with a packed matrix of K inputs. Between two
// groups, the sums are in memory, because the products need the registers.
template <class C, class S, class Tile, class Start>
HWY_INLINE void AddInt8(ItemState<C, S>& s, const void* matrix, const Channels& channels, size_t K,
                        const unsigned char* inputs, Tile& tile, Start&& start) {
  constexpr size_t kVectors = Tile::kPanels * Tile::kGates;
  static_assert(Tile::kRows * kVectors <= kMaxSums);
  using D = std::remove_const_t<decltype(tile.d)>;
  const size_t groups = HWY_LIKELY(s.spec.group == 0) ? 1 : Groups(s.spec, K);
  if (HWY_UNLIKELY(groups == 0)) return start();  // no inputs
  C* sums_between_groups = s.tile_sums;
  for (size_t group = 0;;) {
    AddGroup(s, matrix, channels, K, inputs, tile, group, groups, [&]() HWY_ATTR {
      if (HWY_LIKELY(group == 0)) return start();
#pragma GCC unroll 32
      for (size_t i = 0; i < Tile::kRows * kVectors; ++i) {
        tile.sums[i / kVectors][i % kVectors] = hn::Load(tile.d, sums_between_groups + i * hn::MaxLanes(D()));
      }
    });
    if (HWY_LIKELY(++group == groups)) return;
#pragma GCC unroll 32
    for (size_t i = 0; i < Tile::kRows * kVectors; ++i) {
      hn::Store(tile.sums[i / kVectors][i % kVectors], tile.d, sums_between_groups + i * hn::MaxLanes(D()));
    }
    KeepInMemory(sums_between_groups);
  }
}

// Sets the tile's sums by start(), then adds the products of rounded rows with a packed matrix of K inputs.
template <class C, class S, class Tile, class Start>
HWY_INLINE void AddRounded(ItemState<C, S>& s, const void* matrix, size_t K, const unsigned char* inputs, Tile& tile,
                           Start&& start) {
  constexpr size_t kGates = Tile::kGates, kVectors = Tile::kPanels * kGates;
  using D = std::remove_const_t<decltype(tile.d)>;
  constexpr size_t kLanes = hn::MaxLanes(D());
  HWY_ALIGN C computed[Tile::kRows * kVectors * kLanes];
  const C* sums = computed;
  size_t pitch = kVectors * kLanes;
  if (kHasAmx<S> && s.amx_sums.from != nullptr) {
    pitch = s.amx_sums.pitch;
    sums = reinterpret_cast<const C*>(s.amx_sums.from) + (tile.row - s.amx_sums.row) * pitch +
           (tile.panel - s.amx_sums.panel) * kGates * kLanesOf<C>;
  } else {
    const size_t stored_K = RoundUpTo(kInputsPerBlock, K), stride = RoundedRow(K);
    const C* x[Tile::kRows];
    const StoredBFloat16* panels[Tile::kPanels];
#pragma GCC unroll 16
    for (size_t r = 0; r < Tile::kRows; ++r) x[r] = reinterpret_cast<const C*>(inputs + (tile.row + r) * stride);
#pragma GCC unroll 16
    for (size_t p = 0; p < Tile::kPanels; ++p) {
      panels[p] = static_cast<const StoredBFloat16*>(matrix) + s.geometry.offset(tile.panel + p, stored_K, kGates);
    }
    MultiplyRounded<Tile::kRows, Tile::kPanels, kGates>(tile.d, K, x, panels, tile.width, computed);
  }
  start();
#pragma GCC unroll 16
  for (size_t r = 0; r < Tile::kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      tile.sums[r][v] = hn::Add(tile.sums[r][v], hn::LoadU(tile.d, sums + r * pitch + v * kLanes));
    }
  }
}

// AddInt8 or AddRounded, depending on the conversion of the rows.
template <class C, class S, class Tile, class Start>
HWY_INLINE void AddConverted(ItemState<C, S>& s, const void* matrix, const Channels& channels, size_t K,
                             const unsigned char* inputs, Tile& tile, Start&& start) {
  if constexpr (kIsInt8<S>) {
    AddInt8(s, matrix, channels, K, inputs, tile, start);
  } else {
    AddRounded(s, matrix, K, inputs, tile, start);
  }
}

// Sets the tile's sums by start(), then adds the products of rows of h, or of r∘h, with a packed matrix.
// kWithPipelined: also computes the next part of the pipelined input projection.
template <bool kWithPipelined, class Tile, class C, class S, class Start>
HWY_INLINE void AddRecurrent(ItemState<C, S>& s, const void* matrix, const Channels& channels, Tile& tile,
                             Start&& start) {
  if constexpr (kConvertsInputs<S>) {
    AddConverted(s, matrix, channels, s.spec.H, s.h_converted, tile, start);
  } else {
    start();
    using D = std::remove_const_t<decltype(tile.d)>;
    if constexpr (kWithPipelined && Tile::kRows == 1 && Tile::kPanels * Tile::kGates <= 4 &&
                  std::is_same_v<std::remove_const_t<decltype(tile.width)>, FullWidth<D>>) {
      if (s.pipelined.waiting()) {
        const S* panels[Tile::kPanels];
        PanelsOf(s, matrix, s.spec.H, tile, panels);
        return s.pipelined.template MultiplyBoth<Tile::kPanels, Tile::kGates>(tile.d, s.spec.H, s.h_rows[tile.row],
                                                                              panels, tile.sums);
      }
    }
    AddProduct(s, matrix, s.spec.H, s.h_rows, tile);
  }
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
