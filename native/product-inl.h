// The products: rows of inputs times panels of packed weights, accumulated in registers.
//
// Each output is one sum, in order of k, by fused multiply-add; a tile only decides how many such
// sums run side by side. So every tile, and every target with FMA, gives the same bits.

#include <type_traits>

#include "hwy/highway.h"
#include "native/packed.h"

#if defined(ONEGRU_NATIVE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_PRODUCT_INL_H_
#undef ONEGRU_NATIVE_PRODUCT_INL_H_
#else
#define ONEGRU_NATIVE_PRODUCT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Storage of 16 bits by its meaning; the bits themselves are uint16_t.
struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const hn::TFromD<D>* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const Brain* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const Half* from) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  // Shifted into place, the exponent is off by 112; a multiplication mends it, for subnormals too.
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  const auto finite = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special = hn::BitCast(d, hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(d32, 0x7f800000u)));
  const auto is_special = hn::Gt(hn::BitCast(d, magnitude), hn::BitCast(d, hn::Set(d32, 0x7bffu)));
  const auto value = hn::IfThenElse(is_special, special, finite);
  return hn::BitCast(d, hn::Or(hn::BitCast(d32, value), sign));
#endif
}

// Which of two inputs side by side k is; kAlone: the last of an odd number.
enum class Of { kFirst, kSecond, kAlone };

// The weights of input k and one of kGates gates; see packed.h.
template <Of kOf, size_t kGates, class D, class S>
HWY_INLINE hn::Vec<D> WeightsOf(D d, const S* panel, size_t k, size_t gate, size_t units) {
  if constexpr (!std::is_same_v<S, Brain> || kOf == Of::kAlone) {
    return LoadWeights(d, panel + (k * kGates + gate) * units);
  } else {
    const hn::RebindToUnsigned<D> d32;
    constexpr size_t kPlace = kOf == Of::kSecond ? 1 : 0;
    const auto* const pairs =
        reinterpret_cast<const std::uint32_t*>(panel + ((k - kPlace) * kGates + 2 * gate) * units);
    const auto both = hn::LoadU(d32, pairs);
    if constexpr (kOf == Of::kFirst) return hn::BitCast(d, hn::ShiftLeft<16>(both));
    return hn::BitCast(d, hn::And(both, hn::Set(d32, 0xffff0000u)));
  }
}

// The units of a panel that fills its vector: a constant, so that addresses are too.
template <class D>
using Whole = std::integral_constant<size_t, hn::MaxLanes(D())>;

// sums[row][panel * kGates + gate] += x[row][k] · the weights of input k in that panel and gate.
template <Of kOf, size_t kGates, size_t kRows, size_t kPanels, class D, class S, class Width, class V>
HWY_INLINE void AddInput(D d, const hn::TFromD<D>* const (&x)[kRows], const S* const (&w)[kPanels], size_t k,
                         Width width, V (&sums)[kRows][kPanels * kGates]) {
  V weights[kPanels * kGates];
#pragma GCC unroll 16
  for (size_t p = 0; p < kPanels; ++p) {
    const size_t units = p + 1 < kPanels ? size_t{Whole<D>::value} : size_t{width};
#pragma GCC unroll 4
    for (size_t g = 0; g < kGates; ++g) weights[p * kGates + g] = WeightsOf<kOf, kGates>(d, w[p], k, g, units);
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    const V input = hn::Set(d, x[r][k]);
#pragma GCC unroll 16
    for (size_t v = 0; v < kPanels * kGates; ++v) {
      sums[r][v] = hn::MulAdd(input, weights[v], sums[r][v]);
    }
  }
}

// sums[row][panel * kGates + gate] += inputs[row] · panel of that gate.
//
// inputs: rows of K numbers. panels: where each panel begins. width: the units of the last panel, a number or
// Whole; those before it are whole.
template <size_t kRows, size_t kPanels, size_t kGates, class D, class S, class Width, class V = hn::Vec<D>>
HWY_INLINE void Multiply(D d, size_t K, const hn::TFromD<D>* const* inputs, const S* const* panels, Width width,
                         V (&sums)[kRows][kPanels * kGates]) {
  const hn::TFromD<D>* x[kRows];
  const S* w[kPanels];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) x[r] = inputs[r];
#pragma GCC unroll 16
  for (size_t p = 0; p < kPanels; ++p) w[p] = panels[p];
  size_t k = 0;
  if constexpr (std::is_same_v<S, Brain>) {
#pragma GCC unroll 2
    for (; k < K / 2 * 2; k += 2) {
      AddInput<Of::kFirst, kGates>(d, x, w, k, width, sums);
      AddInput<Of::kSecond, kGates>(d, x, w, k + 1, width, sums);
    }
  }
#pragma GCC unroll 4
  for (; k < K; ++k) AddInput<Of::kAlone, kGates>(d, x, w, k, width, sums);
}

// The same for the gates of a narrow panel side by side, as they lie: three of them are then one or two vectors.
// sums[row][v]: vector v of the 3·width sums of a row.
template <Of kOf, size_t kRows, size_t kVectors, class D, class S, class V>
HWY_INLINE void AddJoint(D d, const hn::TFromD<D>* const (&x)[kRows], const S* panel, size_t k, size_t units,
                         V (&sums)[kRows][kVectors]) {
  constexpr size_t kEach = hn::MaxLanes(D()) * (std::is_same_v<S, Brain> && kOf != Of::kAlone ? 2 : 1);
  V weights[kVectors];
#pragma GCC unroll 2
  for (size_t v = 0; v < kVectors; ++v) weights[v] = WeightsOf<kOf, 1>(d, panel + v * kEach, k, 0, units);
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    const V input = hn::Set(d, x[r][k]);
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(input, weights[v], sums[r][v]);
  }
}

template <size_t kRows, size_t kVectors, class D, class S, class V = hn::Vec<D>>
HWY_INLINE void MultiplyJoint(D d, size_t K, const hn::TFromD<D>* const* inputs, const S* panel, size_t width,
                              V (&sums)[kRows][kVectors]) {
  const hn::TFromD<D>* x[kRows];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) x[r] = inputs[r];
  size_t k = 0;
  if constexpr (std::is_same_v<S, Brain>) {
    for (; k < K / 2 * 2; k += 2) {
      AddJoint<Of::kFirst>(d, x, panel, k, 3 * width, sums);
      AddJoint<Of::kSecond>(d, x, panel, k + 1, 3 * width, sums);
    }
  }
#pragma GCC unroll 4
  for (; k < K; ++k) AddJoint<Of::kAlone>(d, x, panel, k, 3 * width, sums);
}

// Whether the tiles are those for 32 registers, as AVX-512 has. Elsewhere ONEGRU_LARGE_TILES asks for them, so
// that they can be tested without such a CPU.
#if defined(ONEGRU_LARGE_TILES)
inline constexpr bool kLargeTiles = true;
#else
inline constexpr bool kLargeTiles = HWY_TARGET == HWY_AVX3;
#endif

// The most rows of a tile.
inline constexpr size_t kMostRows = kLargeTiles ? 8 : 4;

// How many panels of so many gates go side by side with so many rows, where all rows make one tile: enough sums
// under way to hide a multiply-add's latency, no more than there are registers. Measured on AVX-512, for one row:
// of 3 gates, 2 panels are up to 1.3 times as fast as 1 where two multiply-adds begin in a cycle (Zen 5), 4 cost
// 15 % more than 1 at H = 64 (Zen 4); of 2 gates, 4 panels are 2 to 5 % slower in single steps and 1.1 times as
// fast over time at H = 64 alone. Asking for weights 16 steps ahead is 2 to 10 % slower, from caches and from
// memory alike.
constexpr size_t PanelsBeside(size_t gates, size_t rows) {
  if (kLargeTiles) {
    if (gates == 3) return rows <= 3 ? 2 : 1;
    if (gates == 2) return rows <= 6 ? 2 : 1;
    return rows <= 3 ? 4 : 2;
  }
  if (rows == 1) return gates == 1 ? 8 : 4;
  if (gates == 3) return rows == 2 ? 2 : 1;
  if (gates == 2) return rows <= 3 ? 2 : 1;
  return rows <= 3 ? 4 : 2;
}

// Calls f with a number of rows of a tile as a constant; it is at least kLeast.
template <size_t kLeast, class F>
HWY_INLINE void WithRows(size_t rows, F&& f) {
  if constexpr (kLeast < kMostRows) {
    if (rows > kLeast) return WithRows<kLeast + 1>(rows, f);
  }
  f(std::integral_constant<size_t, kLeast>());
}

// Calls f with the tag of the shortest vector that holds `width` units.
template <class D, class F>
HWY_INLINE void WithTag(D d, size_t width, F&& f) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  constexpr size_t kBytes = kLanes * sizeof(hn::TFromD<D>);
  if constexpr (kBytes >= 64) {
    if (width <= kLanes / 4) return f(hn::Half<hn::Half<D>>());
  }
  if constexpr (kBytes >= 32) {
    if (width <= kLanes / 2) return f(hn::Half<D>());
  }
  f(d);
}

// The rows from kFrom on, a few at a time: all of them would not leave registers for the work.
template <size_t kFrom, size_t kRows, size_t kSums, class Tile, class D, class Width, class V>
HWY_INLINE void FinishRows(Tile& tile, D d, size_t row, size_t panel, Width width, V (&sums)[kRows][kSums]) {
  if constexpr (kFrom < kRows) {
    constexpr size_t kTo = HWY_MIN(kFrom + 4, kRows);
    tile.template FinishGates<kFrom, kTo>(d, row, panel, width, sums);
    tile.template FinishState<kFrom, kTo>(d, row, panel, width, sums);
    FinishRows<kTo>(tile, d, row, panel, width, sums);
  }
}

// A tile: rows x panels. Sum(d, row, panel, width, sums) does its products, FinishGates(…) and FinishState(…) what
// becomes of the sums. Each does one thing for all of them before the next: an activation is a long chain of
// operations, and the CPU sees the next one only if it is not far behind.
template <size_t kRows, size_t kPanels, class Tile, class D, class Width>
HWY_INLINE void Do(Tile& tile, D d, size_t row, size_t panel, Width width) {
  hn::Vec<D> sums[kRows][kPanels * Tile::kGates];
  tile.Sum(d, row, panel, width, sums);
  FinishRows<0>(tile, d, row, panel, width, sums);
}

// A tile of several rows, which takes long enough to be called: it is wanted in several places.
template <size_t kRows, size_t kPanels, class Tile, class D, class Width>
HWY_NOINLINE void DoApart(Tile tile, D d, size_t row, size_t panel, Width width) {
  Do<kRows, kPanels>(tile, d, row, panel, width);
}

// A panel, swept by tiles of rows: full ones, and where less than half a tile would be left, the last two alike.
template <size_t kLeast, class Tile, class D, class Width>
HWY_INLINE void SweepRows(Tile& tile, D d, size_t rows, size_t panel, Width width) {
  for (size_t row = 0; row < rows;) {
    const size_t left = rows - row;
    const size_t count = left <= kMostRows ? left : left < kMostRows * 3 / 2 ? (left + 1) / 2 : kMostRows;
    WithRows<kLeast>(count, [&](auto n) HWY_ATTR {
      if constexpr (n == 1) {
        Do<1, 1>(tile, d, row, panel, width);
      } else {
        DoApart<n, 1>(tile, d, row, panel, width);
      }
    });
    row += count;
  }
}

// All rows as one tile, with kWide panels [first, last) side by side: the fewer panels to a group, the more of
// them stay in the first-level cache from one sweep to the next.
template <size_t kRows, size_t kWide, class Tile, class D, class GoOn>
HWY_INLINE void SweepPanels(Tile& tile, D d, size_t first, size_t last, bool backwards, GoOn&& go_on) {
  const Whole<D> whole;
  const size_t wides = (last - first) / kWide * kWide;
  const auto some = [&](auto panels, size_t panel) HWY_ATTR {
    if constexpr (kRows == 1) {
      Do<1, panels>(tile, d, 0, panel, whole);
    } else {
      DoApart<kRows, panels>(tile, d, 0, panel, whole);
    }
  };
  const auto rest = [&]() HWY_ATTR {
    size_t panel = first + wides;
    if constexpr (kWide > 4) {
      if (panel + 4 <= last) some(std::integral_constant<size_t, 4>(), panel), panel += 4;
    }
    if constexpr (kWide > 2) {
      if (panel + 2 <= last) some(std::integral_constant<size_t, 2>(), panel), panel += 2;
    }
    if (panel < last) some(std::integral_constant<size_t, 1>(), panel);
  };
  if (backwards) rest();
  for (size_t i = 0; i < wides && go_on(kWide); i += kWide) {
    some(std::integral_constant<size_t, kWide>(), first + (backwards ? wides - kWide - i : i));
  }
  if (!backwards) rest();
}

// Does tiles until all rows and the panels [first, last) are covered, with vectors as short as they may be.
//
// More rows than a tile has: panel after panel, each swept by tiles, so that a panel comes from memory once. Else
// panels side by side. `backwards` walks the panels the other way round: after a forward sweep the last ones are
// in cache. In a long sweep the rest is left out once tile.self->GoOn says no. kWideForOne: how many panels go
// side by side with a single row, where it is known that there is one; 0 where it is not.
template <size_t kWideForOne = 0, class D, class Tile>
HWY_INLINE void ForTiles(D d, const Geometry& geometry, size_t rows, size_t first, size_t last, bool backwards,
                         Tile tile) {
  const size_t full = HWY_MAX(first, HWY_MIN(last, geometry.full_panels()));
  if (rows == 0) return;
  const bool is_long = tile.self->IsLong(rows * (last - first));
  const auto go_on = [&](size_t panels)
                         HWY_ATTR { return HWY_LIKELY(!is_long) || tile.self->GoOn(rows * panels); };
  const auto narrow = [&]() HWY_ATTR {
    if (full == last) return;
    const size_t width = geometry.width(full);
    if constexpr (kWideForOne != 0) {
      WithTag(d, width, [&](auto tag) HWY_ATTR { Do<1, 1>(tile, tag, 0, full, width); });
    } else {
      WithTag(d, width, [&](auto tag) HWY_ATTR { SweepRows<1>(tile, tag, rows, full, width); });
    }
  };
  if (backwards) narrow();
  if constexpr (kWideForOne != 0) {
    SweepPanels<1, kWideForOne>(tile, d, first, full, backwards, go_on);
  } else if (rows <= kMostRows) {
    WithRows<1>(rows, [&](auto n) HWY_ATTR {
      SweepPanels<n, PanelsBeside(Tile::kGates, n)>(tile, d, first, full, backwards, go_on);
    });
  } else {
    constexpr size_t kLeast = kMostRows / 2;
    for (size_t i = first; i < full && go_on(1); ++i) {
      SweepRows<kLeast>(tile, d, rows, backwards ? first + full - 1 - i : i, Whole<D>());
    }
  }
  if (!backwards) narrow();
}

// The same for one row and all panels where they are few: no search for tiles.
inline constexpr size_t kFewPanels = kLargeTiles ? 2 : 4;
// Up to so many inputs a single panel's products with x fit into the time that a step waits for its activations.
inline constexpr size_t kMostInputsByStep = 20;

// kWhole panels, and a short one with short vectors, in turns: no chain of operations then waits for another to
// leave the CPU's queues.
template <size_t kWhole, class D, class Short, class Tile>
HWY_INLINE void DoMixed(Tile& tile, D d, Short short_d, size_t width) {
  hn::Vec<D> sums[1][kWhole * Tile::kGates];
  hn::Vec<Short> short_sums[1][Tile::kGates];
  tile.Sum(d, 0, 0, Whole<D>(), sums);
  tile.Sum(short_d, 0, kWhole, width, short_sums);
  tile.template FinishGates<0, 1>(d, 0, 0, Whole<D>(), sums);
  tile.template FinishGates<0, 1>(short_d, 0, kWhole, width, short_sums);
  tile.template FinishState<0, 1>(d, 0, 0, Whole<D>(), sums);
  tile.template FinishState<0, 1>(short_d, 0, kWhole, width, short_sums);
}

template <class D, class Tile>
HWY_INLINE void ForFew(D d, const Geometry& geometry, Tile tile) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  const size_t panels = geometry.panels();
  const size_t width = geometry.width(panels - 1);
  if (panels == 1) {
    WithTag(d, width, [&](auto tag) HWY_ATTR { Do<1, 1>(tile, tag, 0, 0, width); });
  } else if (width <= kLanes / 2) {
    WithTag(d, width, [&](auto tag) HWY_ATTR {
      if (panels == 2) return DoMixed<1>(tile, d, tag, width);
      if constexpr (kFewPanels > 2) {
        if (panels == 3) return DoMixed<2>(tile, d, tag, width);
        DoMixed<3>(tile, d, tag, width);
      }
    });
  } else if (panels == 2) {
    Do<1, 2>(tile, d, 0, 0, width);
  } else if constexpr (kFewPanels > 2) {
    if (panels == 3) return Do<1, 3>(tile, d, 0, 0, width);
    Do<1, 4>(tile, d, 0, 0, width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
