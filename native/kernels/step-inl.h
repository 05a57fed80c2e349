// What a step computes of the products, for both places of the reset gate. z and r of both are
//
//   z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
//   r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
//   n = g(clip(x·Whᵀ + (r∘h)·Rhᵀ + Wbh + Rbh))       reset before
//   n = g(clip(x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh))       reset after
//   z = (1 - a)·z                                     with attention, of OpenVINO
//   z = 1 - a·(1 - z)                                 with attention, of DIEN
//   h = (1 - z)∘n + z∘h

#include <cmath>

#include "hwy/highway.h"
#include "native/kernels/activations-inl.h"
#include "native/kernels/projection-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_STEP_INL_H_
#undef ONEGRU_NATIVE_KERNELS_STEP_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_STEP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

enum Gate : size_t { kZ, kR, kN };

// The units of one gate.
template <Gate kGate, class At>
HWY_INLINE auto& Of(const At& at) {
  if constexpr (kGate == kZ) {
    return at.z;
  } else if constexpr (kGate == kR) {
    return at.r;
  } else {
    return at.n;
  }
}

// Any activation with a clip. It is out of line, because most layers have Sigmoid and Tanh without a clip.
template <class D, class V>
HWY_NOINLINE V ActivateClipped(D d, const Activation& activation, double clip, V x) {
  return Activate(d, activation, Clip(d, x, hn::Set(d, static_cast<hn::TFromD<D>>(clip))));
}

template <Gate kGate, class C, class Part>
HWY_INLINE void ApplyF(const StepState<C>& s, Part part) {
  if (HWY_LIKELY(s.is_default)) return part.ForEach(ONEGRU_AT { Of<kGate>(at) = Sigmoid(at.d, Of<kGate>(at)); });
  part.ForEach(ONEGRU_AT { Of<kGate>(at) = ActivateClipped(at.d, s.f, s.spec.clip, Of<kGate>(at)); });
}

template <class C, class Part>
HWY_INLINE void ApplyG(const StepState<C>& s, Part part) {
  if (HWY_LIKELY(s.is_default)) return part.ForEach(ONEGRU_AT { at.n = Tanh(at.d, at.n); });
  part.ForEach(ONEGRU_AT { at.n = ActivateClipped(at.d, s.g, s.spec.clip, at.n); });
}

// (1 - a)·z, or 1 - a·(1 - z) = (1 - a) + a·z
template <class C, class Part>
HWY_INLINE void Attend(const StepState<C>& s, Part part) {
  if (HWY_LIKELY(!s.spec.attention)) return;
  part.ForEach(ONEGRU_AT {
    const C a = s.in.attention_step[at.row];
    const auto one = hn::Set(at.d, C{1}), one_minus_a = hn::Set(at.d, C{1} - a);
    if (!s.spec.has_dien_attention) {
      at.z = hn::Mul(one_minus_a, at.z);
    } else if (HWY_UNLIKELY(std::isinf(a))) {  // the sum of its two parts would be NaN
      at.z = NegMultiplyAdd(hn::Set(at.d, a), hn::Sub(one, at.z), one);
    } else {
      at.z = MultiplyAdd(hn::Set(at.d, a), at.z, one_minus_a);
    }
  });
}

template <class C, class At>
HWY_INLINE auto Bn(const StepState<C>& s, const At& at) {
  return hn::LoadU(at.d, static_cast<const C*>(s.weights.bn) + at.panel * kLanesOf<C>);
}

// The units of a tile in a buffer of states.
template <class C, class At>
HWY_INLINE C* StatePtr(const StepState<C>& s, C* states, const At& at) {
  return states + at.row * s.padded + at.panel * kLanesOf<C>;
}

template <class C, class At, class V>
HWY_INLINE void StoreState(const StepState<C>& s, const At& at, V units, C* states) {
  hn::Store(units, at.d, StatePtr(s, states, at));
}

template <class C, class At>
HWY_INLINE auto PreviousState(const StepState<C>& s, const At& at) {
  return hn::Load(at.d, StatePtr(s, s.State(s.step, 0), at));
}

// The first `width` units of a vector, which are also in `stored`.
template <class D, class V>
HWY_INLINE void StorePart([[maybe_unused]] D d, V units, size_t width, [[maybe_unused]] const hn::TFromD<D>* stored,
                          hn::TFromD<D>* to) {
#if HWY_TARGET == HWY_AVX3
  hn::BlendedStore(units, hn::FirstN(d, width), d, to);
#else
  size_t done = 0;
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) >= 32) {
    const hn::Half<D> half;
    if (width >= hn::MaxLanes(half)) {
      done = hn::MaxLanes(half);
      hn::StoreU(hn::LowerHalf(half, units), half, to);
    }
  }
  for (; done < width; ++done) to[done] = stored[done];
#endif
}

// n becomes h = (1 - z)∘n + z∘h: the next state, and Y. z(at): z of a row. What all rows need of s is read once,
// because the compiler assumes that the store of a vector may change s.
template <class C, class Part, class Z>
HWY_INLINE void Blend(const StepState<C>& s, Part part, const Z& z) {
  const C* const before = s.State(s.step, 0);
  C* const next = s.State(s.step + 1, 0);
  const size_t padded = s.padded;
  part.ForEach(ONEGRU_AT {
    const size_t place = at.row * padded + at.panel * kLanesOf<C>;
    const auto z_of_row = z(at);
    const auto kept = hn::Mul(z_of_row, hn::Load(at.d, before + place));
    at.n = MultiplyAdd(hn::Sub(hn::Set(at.d, C{1}), z_of_row), at.n, kept);  // n comes last
    hn::Store(at.n, at.d, next + place);
  });
  if (!s.y.by_tile) return;
  const bool is_evenly_spaced = s.y.is_evenly_spaced, io_is_compute_type = s.io_is_compute_type;
  char* const y_to = s.y.to;
  const std::ptrdiff_t y_pitch = s.y.pitch;
  part.ForEach(ONEGRU_AT {
    const bool uses_pitch = !at.kIsOfOneRow && HWY_LIKELY(is_evenly_spaced);
    char* const row = uses_pitch ? y_to + static_cast<std::ptrdiff_t>(at.row) * y_pitch : s.y.AddressOf(s, at.row);
    const C* const state = next + at.row * padded + at.panel * kLanesOf<C>;
    if (HWY_UNLIKELY(!io_is_compute_type)) return s.StoreIn16Bits(state, at.width, row + 2 * at.panel * kLanesOf<C>);
    C* const to = reinterpret_cast<C*>(row) + at.panel * kLanesOf<C>;
    if (HWY_LIKELY(at.width == hn::MaxLanes(at.d))) return hn::StoreU(at.n, at.d, to);
    StorePart(at.d, at.n, at.width, state, to);
  });
}

// Saves a gate of a step. It is out of line, because few calls request it.
template <class C, class D, class V>
HWY_NOINLINE void SaveApart(const StepState<C>& s, D d, size_t slot, size_t panel, SavedGate gate, V units) {
  char* const row = s.call.gates.at(s.TimeOf(slot, s.step), s.item.d, s.Row(slot));
  hn::StoreU(units, d, reinterpret_cast<C*>(row) + gate * s.padded + panel * kLanesOf<C>);
}

template <class C, class At, class V>
HWY_INLINE void Save(const StepState<C>& s, const At& at, SavedGate gate, V units) {
  SaveApart(s, at.d, at.row, at.panel, gate, units);
}

template <class C>
HWY_INLINE bool Saves(const StepState<C>& s) {
  return HWY_UNLIKELY(s.call.gates.data != nullptr);
}

// The stages of an Op that do not depend on the type of the matrices: where the sums of a row start, and the epilogue.
template <class C>
struct ResetAfterStages {
  static constexpr size_t kGates = 3;
  StepState<C>& s;

  template <class At>
  HWY_INLINE void Start(const At& at) const {
    at.z = Xp(s, at, kZ), at.r = Xp(s, at, kR), at.n = Bn(s, at);
  }

  template <class Part>
  HWY_INLINE void Gates(Part part) const {
    ApplyF<kR>(s, part);
    if (Saves(s)) part.ForEach(ONEGRU_AT { Save(s, at, kSavedR, at.r), Save(s, at, kSavedQ, at.n); });
    part.ForEach(ONEGRU_AT { at.n = MultiplyAdd(at.r, at.n, Xp(s, at, kN)); });
    ApplyF<kZ>(s, part);
    if (Saves(s)) part.ForEach(ONEGRU_AT { Save(s, at, kSavedZ, at.z); });
    Attend(s, part);
  }

  template <class Part>
  HWY_INLINE void Finish(Part part) const {
    ApplyG(s, part);
    if (Saves(s)) part.ForEach(ONEGRU_AT { Save(s, at, kSavedN, at.n); });
    Blend(s, part, ONEGRU_AT { return at.z; });
  }
};

template <class C>
struct ResetBeforeGatesStages {
  static constexpr size_t kGates = 2;
  StepState<C>& s;

  template <class At>
  HWY_INLINE void Start(const At& at) const {
    at.z = Xp(s, at, kZ), at.r = Xp(s, at, kR);
  }

  template <class Part>
  HWY_INLINE void Gates(Part part) const {
    ApplyF<kR>(s, part);
    part.ForEach(ONEGRU_AT { StoreState(s, at, hn::Mul(at.r, PreviousState(s, at)), s.rh); });
    ApplyF<kZ>(s, part);
    if (Saves(s)) part.ForEach(ONEGRU_AT { Save(s, at, kSavedR, at.r), Save(s, at, kSavedZ, at.z); });
    Attend(s, part);
  }

  template <class Part>
  HWY_INLINE void Finish(Part part) const {
    part.ForEach(ONEGRU_AT { StoreState(s, at, at.z, s.z); });
  }
};

template <class C>
struct ResetBeforeStateStages {
  static constexpr size_t kGates = 1;
  StepState<C>& s;

  template <class At>
  HWY_INLINE void Start(const At& at) const {
    at.n = Xp(s, at, kN);
  }

  template <class Part>
  HWY_INLINE void Gates(Part) const {}

  template <class Part>
  HWY_INLINE void Finish(Part part) const {
    ApplyG(s, part);
    if (Saves(s)) part.ForEach(ONEGRU_AT { Save(s, at, kSavedN, at.n); });
    const C* const z = s.z;
    const size_t padded = s.padded;
    Blend(s, part, ONEGRU_AT { return hn::Load(at.d, z + at.row * padded + at.panel * kLanesOf<C>); });
  }
};

// An Op of a step: rows of h, or of r∘h, times a matrix, then its stages.
template <template <class> class StagesOf, class C, class S, bool kWithPipelined>
struct RecurrentOp {
  static constexpr size_t kGates = StagesOf<C>::kGates, kSumsPerGate = kSumsPerGateOf<S>;
  static constexpr size_t kRowsForPanelPairs = RowsForPanelPairs<S>(kGates);
  static constexpr bool kOutlineEpilogue = true;
  static constexpr bool kIsFirst = kGates > 1;  // of the step, so it may include the input projection
  ItemState<C, S>& s;

  StagesOf<C> Stages() const { return {s}; }
  RecurrentOp<StagesOf, C, S, false> WithoutPipelined() const { return {s}; }

  ConvertedProduct Product() const
    requires kHasAmx<S>
  {
    return {kIsFirst ? s.weights.R : s.weights.Rh, s.spec.H, s.h_converted};
  }

  template <class D, class Width>
  HWY_INLINE void Begin(D d, size_t rows, size_t panel, Width width) const
    requires kIsFirst
  {
    if (s.in.mode == InputProjection::kFusedPerPanel) ProjectPanel(s, d, rows, panel, width);
  }

  template <class Tile>
  HWY_INLINE void Sum(Tile& tile) const {
    if constexpr (kIsFirst) ProjectTile(s, tile);
    AddRecurrent<kWithPipelined>(s, kIsFirst ? s.weights.R : s.weights.Rh, kIsFirst ? s.weights.of_R : s.weights.of_Rh,
                                 tile, [&]() HWY_ATTR { tile.ForEach(ONEGRU_AT { Stages().Start(at); }); });
  }
};

// Out-of-line epilogues are compiled once for each compute type, in the unit that defines ONEGRU_OWNS_STAGES.
#if defined(ONEGRU_OWNS_STAGES)
#define ONEGRU_EXTERN
#else
#define ONEGRU_EXTERN extern
#endif
#define ONEGRU_STAGES_OF(stages, rows, D) \
  ONEGRU_EXTERN template void RunStoredPart<rows>(stages, D, const ONEGRU_COMPUTED*, size_t, size_t, size_t, size_t);
#define ONEGRU_STAGES(rows, D)                                       \
  ONEGRU_STAGES_OF(ResetAfterStages<ONEGRU_COMPUTED>, rows, D)       \
  ONEGRU_STAGES_OF(ResetBeforeGatesStages<ONEGRU_COMPUTED>, rows, D) \
  ONEGRU_STAGES_OF(ResetBeforeStateStages<ONEGRU_COMPUTED>, rows, D)
#if !ONEGRU_FEW_TILE_SHAPES  // which have at most two rows
ONEGRU_STAGES(2, hn::ScalableTag<ONEGRU_COMPUTED>)
ONEGRU_STAGES(3, hn::ScalableTag<ONEGRU_COMPUTED>)
ONEGRU_STAGES(4, hn::ScalableTag<ONEGRU_COMPUTED>)
#endif
#if HWY_TARGET == HWY_AVX3
ONEGRU_STAGES(2, hn::Half<hn::ScalableTag<ONEGRU_COMPUTED>>)
ONEGRU_STAGES(3, hn::Half<hn::ScalableTag<ONEGRU_COMPUTED>>)
ONEGRU_STAGES(4, hn::Half<hn::ScalableTag<ONEGRU_COMPUTED>>)
#endif
#undef ONEGRU_STAGES
#undef ONEGRU_STAGES_OF
#undef ONEGRU_EXTERN

// Computes an Op for the active rows and this member's panels; `states` are its inputs: h, or r∘h.
template <template <class> class Stages, bool kWithPipelined, class C, class S>
HWY_INLINE void Compute(ItemState<C, S>& s, C* states) {
  const RecurrentOp<Stages, C, S, kWithPipelined> op{s};
  const hn::ScalableTag<C> d;
  const bool backwards = ((s.step + s.call.sweep_parity) & 1) != 0;
  PrepareStates(s, states);
  if constexpr (kWithPipelined) {
    ForTiles<kPanelsOfPipelinedTile[op.kGates]>(d, s.geometry, 1, s.first, s.last, backwards, op);
  } else if (s.is_single_tile) {
    ForSingleTile(d, s.geometry, op);
  } else {
    ForTiles(d, s.geometry, s.active, s.first, s.last, backwards, op);
  }
}

// Sets this member's units of the new states to zero where they are below kLeastState. By a comparison, not by the
// CPU's mode, so that all CPUs have the same bits.
template <class C, class S>
HWY_NOINLINE void FlushStates(const ItemState<C, S>& s) {
  const hn::ScalableTag<C> d;
  const auto least = hn::Set(d, kLeastState<C>);
  for (size_t slot = 0; slot < s.active; ++slot) {
    C* const state = s.State(s.step + 1, slot);
    for (size_t unit = s.first * kLanesOf<C>; unit < s.last * kLanesOf<C>; unit += kLanesOf<C>) {
      const auto h = hn::Load(d, state + unit);
      hn::Store(hn::IfThenZeroElse(hn::Lt(hn::Abs(h), least), h), d, state + unit);
    }
  }
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
