// The gradients of a chunk of steps. The gates are those that the call has saved, or computed again from X and the
// states; then, from the last step to the first, with the gradient dh by the new state and prime for an activation's
// derivative:
//
// clang-format off
//   dn = dh∘(1 - z)∘g'                            by the argument of n
//   dz = dh∘(h - n)∘f'                            by the argument of z; with attention, times 1 - a, and
//   da = -Σ dh∘(h - n)∘z                          with attention, z as the gate is before the score scales it
//   dq = dn∘r                                     reset after, q = h·Rhᵀ + Rbh
//   dr = dn∘q∘f'                                  reset after
//   dr = (dn·Rh)∘h∘f'                             reset before
//   dh = dh∘z + dz·Rz + dr·Rr + dq·Rh             reset after: by the state before
//   dh = dh∘z + dz·Rz + dr·Rr + (dn·Rh)∘r         reset before: by the state before
//
//   dX = dz·Wz + dr·Wr + dn·Wh
//   dW = Σ (dz, dr, dn)ᵀ·x
//   dR = Σ (dz, dr, dq)ᵀ·h                        reset before, of n: Σ dnᵀ·(r∘h)
// clang-format on

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "hwy/highway.h"
#include "native/gradients.h"
#include "native/kernels/activations-inl.h"
#include "native/kernels/product-inl.h"
#include "native/kernels/tile-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_GRADIENTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// The derivative of an activation at x, where it is y; where there are two, that from below, or 0.
template <class D, class V>
HWY_NOINLINE V Derivative(D d, const Activation& activation, V x, V y) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d), one = hn::Set(d, T{1});
  const V alpha = hn::Set(d, static_cast<T>(activation.alpha));
  const V beta = hn::Set(d, static_cast<T>(activation.beta));
  switch (activation.function) {
    case Function::kRelu:
      return hn::IfThenElse(hn::Gt(x, zero), one, zero);
    case Function::kTanh:
      return NegMultiplyAdd(y, y, one);
    case Function::kSigmoid:
      return hn::Mul(y, hn::Sub(one, y));
    case Function::kAffine:
      return alpha;
    case Function::kLeakyRelu:
      return hn::IfThenElse(hn::Gt(x, zero), one, alpha);
    case Function::kThresholdedRelu:
      return hn::IfThenElse(hn::Gt(x, alpha), one, zero);
    case Function::kScaledTanh: {
      const V t = Tanh(d, hn::Mul(beta, x));
      return hn::Mul(hn::Mul(alpha, beta), NegMultiplyAdd(t, t, one));
    }
    case Function::kHardSigmoid: {
      const V line = MultiplyAdd(alpha, x, beta);
      return hn::IfThenElse(hn::And(hn::Gt(line, zero), hn::Lt(line, one)), alpha, zero);
    }
    case Function::kElu:
      return hn::IfThenElse(hn::Gt(x, zero), one, hn::Add(hn::Mul(alpha, Expm1OfNegative(d, hn::Min(x, zero))), alpha));
    case Function::kSoftsign: {
      const V a = hn::Add(one, hn::Abs(x));
      return hn::Div(one, hn::Mul(a, a));
    }
    case Function::kSoftplus:
      return Sigmoid(d, x);
  }
  return one;
}

// What loops over tiles ask for: nothing stops them.
struct Uninterrupted {
  static constexpr bool IsLong(size_t) { return false; }
  static constexpr bool GoOn(size_t) { return true; }
};

// Rows times a packed matrix of K inputs, a sum for each of kGates gates: from a bias, or added to what is there.
template <class C, size_t kGates_>
struct Gemm {
  static constexpr size_t kGates = kGates_, kSums = 1;
  static constexpr size_t kOfTwoPanels = RowsOfTwoPanels<C>(kGates);
  static constexpr bool kHasManyStages = false;
  struct Gate {
    C* to;          // [index][stride]
    const C* bias;  // [panel][bias_stride]; null: what is there
    size_t bias_stride;
  };

  Uninterrupted s;
  Geometry geometry;
  const C* const* inputs;
  size_t K;
  const void* matrix;
  const size_t* index;  // of each row
  size_t stride;
  Gate gates[kGates];
  size_t begin = 0, count = K;  // the inputs that are added now

  const Gemm& Stages() const { return *this; }

  template <class Tile>
  HWY_INLINE void Sum(Tile& tile) const {
    tile.ForEach(ONEGRU_AT {
      if constexpr (kGates > 1) at.z = Start(at, 0), at.r = Start(at, 1);
      if constexpr (kGates != 2) at.n = Start(at, kGates - 1);
    });
    const C* panels[Tile::kPanels];
    const C* rows[Tile::kRows];
#pragma GCC unroll 16
    for (size_t p = 0; p < Tile::kPanels; ++p) {
      panels[p] = static_cast<const C*>(matrix) + geometry.offset(tile.panel + p, K, kGates) +
                  begin * kGates * geometry.width(tile.panel + p);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < Tile::kRows; ++r) rows[r] = inputs[tile.row + r] + begin;
    Multiply<Tile::kRows, Tile::kPanels, kGates>(tile.d, count, rows, panels, tile.width, tile.sums);
  }

  template <class Rows>
  HWY_INLINE void Gates(Rows) const {}

  template <class Rows>
  HWY_INLINE void Finish(Rows rows) const {
    rows.ForEach(ONEGRU_AT {
      if constexpr (kGates > 1) hn::StoreU(at.z, at.d, To(at, 0)), hn::StoreU(at.r, at.d, To(at, 1));
      if constexpr (kGates != 2) hn::StoreU(at.n, at.d, To(at, kGates - 1));
    });
  }

  template <class At>
  HWY_INLINE C* To(const At& at, size_t gate) const {
    return gates[gate].to + index[at.row] * stride + at.panel * geometry.lanes;
  }
  template <class At>
  HWY_INLINE auto Start(const At& at, size_t gate) const {
    const Gate& g = gates[gate];
    return hn::LoadU(at.d, g.bias == nullptr ? To(at, gate) : g.bias + at.panel * g.bias_stride);
  }
};

// What a sweep's panels may take of the first-level cache; their inputs are cut accordingly. A sum is stored unchanged
// between two parts, so it is still one in order of k.
inline constexpr size_t kBytesOfPanels = 20 * 1024;

template <class C, size_t kGates>
HWY_NOINLINE void Product(Gemm<C, kGates> op, size_t rows) {
  const size_t row = kGates * PanelsOfSweep(kGates) * op.geometry.lanes * sizeof(C);
  const size_t most = rows <= kMaxRows ? HWY_MAX(op.K, 1) : kBytesOfPanels / row;
  do {
    op.count = HWY_MIN(most, op.K - op.begin);
    ForTiles(hn::ScalableTag<C>(), op.geometry, rows, 0, op.geometry.panels(), false, op);
    for (auto& gate : op.gates) gate.bias = nullptr;
    op.begin += op.count;
  } while (op.begin < op.K);
}

// A packed matrix's columns are whole vectors.
HWY_INLINE Geometry WholePanels(size_t units, size_t lanes) { return {(units + lanes - 1) / lanes * lanes, lanes}; }

// How many rows of X's gradient are computed together.
inline constexpr size_t kRowsOfX = 64;

template <class C>
struct RowsScratch {
  size_t* index;       // of all rows
  size_t* step_index;  // of a step's
  const C** inputs;
  C* drh;
  C* dx;
  size_t bytes = 0;

  RowsScratch(const GradientChunk& chunk, size_t slots, unsigned char* base) {
    const size_t lanes = hn::MaxLanes(hn::ScalableTag<C>()), steps = chunk.end - chunk.begin;
    const Spec& spec = chunk.packed->spec();
    index = Take<size_t>(base, slots * steps);
    step_index = Take<size_t>(base, HWY_MAX(slots, kRowsOfX));
    inputs = Take<const C*>(base, slots * steps);
    drh = Take<C>(base, slots * WholePanels(spec.H, lanes).H);
    dx = Take<C>(base, kRowsOfX * WholePanels(spec.I, lanes).H);
  }

 private:
  template <class T>
  T* Take(unsigned char* base, size_t count) {
    T* const at = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 127) / 128 * 128;
    return at;
  }
};

template <class C>
class GradientsOfRows {
 public:
  GradientsOfRows(const GradientChunk& chunk, size_t first_slot, size_t last_slot, unsigned char* scratch)
      : c_(chunk),
        call_(*chunk.call),
        spec_(chunk.packed->spec()),
        weights_(chunk.packed->direction(chunk.d)),
        geometry_(chunk.packed->geometry()),
        padded_(geometry_.padded()),
        first_(first_slot),
        last_(last_slot),
        scratch_(chunk, last_slot - first_slot, scratch) {}

  void Run() {
    Gather();
    Gates();
    for (size_t step = c_.end; step-- > c_.begin;) Step(step);
    if (call_.dX.data != nullptr) ByX();
  }

 private:
  using D = hn::ScalableTag<C>;
  using V = hn::Vec<D>;
  static constexpr size_t kLanes = hn::MaxLanes(D());

  C* At(void* buffer, size_t stride, size_t n) const { return static_cast<C*>(buffer) + n * stride; }
  C* Gradient(size_t n, size_t gate) const { return At(c_.g, c_.stride_g, n) + gate * padded_; }
  size_t Last(size_t step) const { return HWY_MIN(last_, c_.active[step - c_.begin]); }
  size_t Row(size_t slot) const { return static_cast<size_t>(c_.order[slot]); }
  size_t Length(size_t row) const {
    return call_.lengths == nullptr ? call_.T : static_cast<size_t>(call_.lengths[row]);
  }
  size_t TimeOf(size_t row, size_t step) const { return spec_.reversed[c_.d] ? Length(row) - 1 - step : step; }
  bool IsReset(size_t t, size_t row) const { return call_.resets != nullptr && call_.resets[t * call_.B + row] != 0; }
  C Attention(size_t t, size_t row) const {
    return spec_.attention ? *reinterpret_cast<const C*>(call_.attention.at(t, 0, row)) : C{0};
  }
  static C* Numbers(const Rows& rows, size_t t, size_t d, size_t row) {
    return reinterpret_cast<C*>(rows.at(t, d, row));
  }

  // Copies of X and of the states before, with zeros up to whole vectors.
  void Gather() {
    const size_t x_padded = WholePanels(spec_.I, kLanes).H;
    for (size_t step = c_.begin; step < c_.end; ++step) {
      for (size_t slot = first_; slot < Last(step); ++slot) {
        const size_t n = c_.first[step - c_.begin] + slot, row = Row(slot), t = TimeOf(row, step);
        scratch_.index[count_++] = n;
        Copy(Numbers(call_.X, t, 0, row), spec_.I, x_padded, At(c_.x, c_.stride_x, n));
        const bool is_reset = IsReset(t, row);
        const C* state = nullptr;
        if (is_reset ? call_.resets_to_initial : step == 0) {
          if (call_.initial_h.data != nullptr) state = Numbers(call_.initial_h, 0, c_.d, row);
        } else if (!is_reset) {
          state = Numbers(call_.Y, TimeOf(row, step - 1), c_.d, row);
        }
        Copy(state, spec_.H, padded_, At(c_.h, c_.stride_h, n));
      }
    }
  }

  static void Copy(const C* from, size_t count, size_t padded, C* to) {
    if (from == nullptr) count = 0;
    if (count != 0) std::memcpy(to, from, count * sizeof(C));
    std::memset(to + count, 0, (padded - count) * sizeof(C));
  }

  const C* const* Inputs(void* buffer, size_t stride, size_t offset = 0) {
    for (size_t i = 0; i < count_; ++i) scratch_.inputs[i] = At(buffer, stride, scratch_.index[i]) + offset;
    return scratch_.inputs;
  }

  // z, r, n and q, from the call or computed again, and the derivatives of the activations in place of the gradients.
  void Gates() {
    for (size_t i = 0; i < count_; ++i) c_.gates[scratch_.index[i]] = GatesOf(scratch_.index[i]);
    if (call_.gates.data != nullptr) return Saved();
    C *const z = static_cast<C*>(c_.s), *const r = z + padded_, *const n = r + padded_, *const q = n + padded_;
    const C *const bx = static_cast<const C*>(weights_.bx), *const bn = static_cast<const C*>(weights_.bn);
    Product(Gemm<C, 3>{{},
                       geometry_,
                       Inputs(c_.x, c_.stride_x),
                       spec_.I,
                       weights_.W,
                       scratch_.index,
                       c_.stride_s,
                       {{z, bx, 3 * kLanes}, {r, bx + kLanes, 3 * kLanes}, {n, bx + 2 * kLanes, 3 * kLanes}}},
            count_);
    const bool after = spec_.linear_before_reset;
    if (after) {
      Product(Gemm<C, 3>{{},
                         geometry_,
                         Inputs(c_.h, c_.stride_h),
                         spec_.H,
                         weights_.R,
                         scratch_.index,
                         c_.stride_s,
                         {{z, nullptr, 0}, {r, nullptr, 0}, {q, bn, kLanes}}},
              count_);
    } else {
      Product(Gemm<C, 2>{{},
                         geometry_,
                         Inputs(c_.h, c_.stride_h),
                         spec_.H,
                         weights_.R,
                         scratch_.index,
                         c_.stride_s,
                         {{z, nullptr, 0}, {r, nullptr, 0}}},
              count_);
    }
    for (size_t i = 0; i < count_; ++i) {
      const size_t row = scratch_.index[i];
      C *const zs = Gate(row, kSavedZ), *const rs = Gate(row, kSavedR), *const qs = Gate(row, kSavedQ);
      C *const ns = Gate(row, kSavedN), *const hs = At(c_.h, c_.stride_h, row);
      for (size_t j = 0; j < padded_; j += kLanes) {
        Apply(spec_.f[c_.d], hn::LoadU(d_, zs + j), zs + j, Gradient(row, 1) + j);
        const V reset = Apply(spec_.f[c_.d], hn::LoadU(d_, rs + j), rs + j, Gradient(row, 2) + j);
        if (after) {
          Apply(spec_.g[c_.d], MultiplyAdd(reset, hn::LoadU(d_, qs + j), hn::LoadU(d_, ns + j)), ns + j,
                Gradient(row, 0) + j);
        } else {
          hn::StoreU(hn::Mul(reset, hn::LoadU(d_, hs + j)), d_, qs + j);
        }
      }
    }
    if (after) return;
    Product(
        Gemm<C, 1>{
            {}, geometry_, Inputs(q, c_.stride_s), spec_.H, weights_.N, scratch_.index, c_.stride_s, {{n, nullptr, 0}}},
        count_);
    for (size_t i = 0; i < count_; ++i) {
      C* const ns = Gate(scratch_.index[i], kSavedN);
      for (size_t j = 0; j < padded_; j += kLanes) {
        Apply(spec_.g[c_.d], hn::LoadU(d_, ns + j), ns + j, Gradient(scratch_.index[i], 0) + j);
      }
    }
  }

  // Of gates that the call has saved, which are Sigmoid and Tanh.
  void Saved() {
    const V one = hn::Set(d_, C{1});
    for (size_t i = 0; i < count_; ++i) {
      const size_t row = scratch_.index[i];
      C* const qs = Gate(row, kSavedQ);
      const C *const zs = Gate(row, kSavedZ), *const rs = Gate(row, kSavedR), *const ns = Gate(row, kSavedN);
      const C* const hs = At(c_.h, c_.stride_h, row);
      for (size_t j = 0; j < padded_; j += kLanes) {
        const V z = hn::LoadU(d_, zs + j), r = hn::LoadU(d_, rs + j), n = hn::LoadU(d_, ns + j);
        hn::StoreU(hn::Mul(z, hn::Sub(one, z)), d_, Gradient(row, 1) + j);
        hn::StoreU(hn::Mul(r, hn::Sub(one, r)), d_, Gradient(row, 2) + j);
        hn::StoreU(NegMultiplyAdd(n, n, one), d_, Gradient(row, 0) + j);
        if (!spec_.linear_before_reset) hn::StoreU(hn::Mul(r, hn::LoadU(d_, hs + j)), d_, qs + j);
      }
    }
  }

  C* Gate(size_t n, SavedGate gate) const { return static_cast<C*>(c_.gates[n]) + gate * padded_; }
  C* GatesOf(size_t n) const {
    if (call_.gates.data == nullptr) return At(c_.s, c_.stride_s, n);
    const auto [step, slot] = PlaceOf(n);
    return Numbers(call_.gates, TimeOf(Row(slot), step), c_.d, Row(slot));
  }
  // The step and the slot of a row.
  std::pair<size_t, size_t> PlaceOf(size_t n) const {
    const size_t* const end = c_.first + (c_.end - c_.begin);
    const size_t step = static_cast<size_t>(std::upper_bound(c_.first, end, n) - c_.first) - 1;
    return {c_.begin + step, n - c_.first[step]};
  }

  // An activation, and its derivative: none beyond the bound.
  HWY_INLINE V Apply(const Activation& activation, V x, C* value, C* derivative) const {
    const V bound = hn::Set(d_, static_cast<C>(spec_.clip));
    const V within = Clip(d_, x, bound);
    const V y = Activate(d_, activation, within);
    hn::StoreU(y, d_, value);
    const V slope = Derivative(d_, activation, within, y);
    hn::StoreU(hn::IfThenElseZero(hn::Le(hn::Abs(x), bound), slope), d_, derivative);
    return y;
  }

  // A step, backwards.
  void Step(size_t step) {
    const size_t last = Last(step), first_n = c_.first[step - c_.begin];
    if (last <= first_) return;
    const bool after = spec_.linear_before_reset;
    for (size_t slot = first_; slot < last; ++slot) {
      const size_t row = Row(slot), t = TimeOf(row, step);
      C* const dh = At(c_.dh, padded_, slot);
      if (step + 1 == Length(row)) {
        Copy(call_.dY_h.data == nullptr ? nullptr : Numbers(call_.dY_h, 0, c_.d, row), spec_.H, padded_, dh);
      }
      if (call_.dY.data != nullptr) {
        const C* const dy = Numbers(call_.dY, t, c_.d, row);
        for (size_t j = 0; j < spec_.H; ++j) dh[j] += dy[j];
      }
      const C da = after ? Blend<true>(first_n + slot, dh, Attention(t, row))
                         : Blend<false>(first_n + slot, dh, Attention(t, row));
      if (call_.d_attention.data != nullptr) *Numbers(call_.d_attention, t, 0, row) += da;
    }
    const size_t count = last - first_;
    for (size_t i = 0; i < count; ++i) scratch_.step_index[i] = i;
    const Geometry whole{padded_, kLanes};
    if (!after) {
      std::memset(scratch_.drh, 0, count * padded_ * sizeof(C));
      Product(Gemm<C, 1>{{},
                         whole,
                         StepInputs(first_n, count, 0),
                         padded_,
                         c_.by_rh,
                         scratch_.step_index,
                         padded_,
                         {{scratch_.drh, nullptr, 0}}},
              count);
      for (size_t i = 0; i < count; ++i) ByReset(first_n + first_ + i, scratch_.drh + i * padded_, first_ + i);
    }
    Product(Gemm<C, 1>{{},
                       whole,
                       StepInputs(first_n, count, 1),
                       (after ? 3 : 2) * padded_,
                       c_.by_h,
                       scratch_.step_index,
                       padded_,
                       {{At(c_.dh, padded_, first_), nullptr, 0}}},
            count);
    for (size_t slot = first_; slot < last; ++slot) {
      const size_t row = Row(slot), t = TimeOf(row, step);
      C* const dh = At(c_.dh, padded_, slot);
      const bool is_reset = IsReset(t, row);
      if ((is_reset ? call_.resets_to_initial : step == 0) && call_.d_initial_h.data != nullptr) {
        C* const to = Numbers(call_.d_initial_h, 0, c_.d, row);
        for (size_t j = 0; j < spec_.H; ++j) to[j] += dh[j];
      }
      if (is_reset) std::memset(dh, 0, padded_ * sizeof(C));
    }
  }

  // The gradients by the arguments of z and n, and of r and q with reset after; dh becomes dh∘z. Returns that by a.
  template <bool kAfter>
  HWY_INLINE C Blend(size_t n, C* dh, C a) const {
    const C *const zs = Gate(n, kSavedZ), *const rs = Gate(n, kSavedR);
    const C *const ns = Gate(n, kSavedN), *const qs = Gate(n, kSavedQ);
    const C* const hs = At(c_.h, c_.stride_h, n);
    C *const dn = Gradient(n, 0), *const dz = Gradient(n, 1), *const dr = Gradient(n, 2), *const dq = Gradient(n, 3);
    const V one = hn::Set(d_, C{1}), share = hn::Set(d_, C{1} - a);
    V by_a = hn::Zero(d_);
    for (size_t j = 0; j < padded_; j += kLanes) {
      const auto mask = hn::FirstN(d_, spec_.H - j);  // numbers beyond H may be anything
      const V by_h = hn::LoadU(d_, dh + j), raw = hn::LoadU(d_, zs + j), z = hn::Mul(share, raw);
      const V apart = hn::Mul(by_h, hn::Sub(hn::LoadU(d_, hs + j), hn::LoadU(d_, ns + j)));
      by_a = hn::Sub(by_a, hn::IfThenElseZero(mask, hn::Mul(apart, raw)));
      const V by_z = hn::Mul(hn::Mul(apart, share), hn::LoadU(d_, dz + j));
      const V by_n = hn::IfThenElseZero(mask, hn::Mul(hn::Mul(by_h, hn::Sub(one, z)), hn::LoadU(d_, dn + j)));
      hn::StoreU(hn::IfThenElseZero(mask, by_z), d_, dz + j);
      hn::StoreU(by_n, d_, dn + j);
      hn::StoreU(hn::IfThenElseZero(mask, hn::Mul(by_h, z)), d_, dh + j);
      if constexpr (kAfter) {
        const V by_r = hn::Mul(hn::Mul(by_n, hn::LoadU(d_, qs + j)), hn::LoadU(d_, dr + j));
        hn::StoreU(hn::IfThenElseZero(mask, by_r), d_, dr + j);
        hn::StoreU(hn::IfThenElseZero(mask, hn::Mul(by_n, hn::LoadU(d_, rs + j))), d_, dq + j);
      }
    }
    if (!spec_.attention) return C{0};
    C sum{0};
    C parts[kLanes];
    hn::StoreU(by_a, d_, parts);
    for (const C part : parts) sum += part;
    return sum;
  }

  // Reset before: the gradient by the argument of r, and dh += (dn·Rh)∘r.
  HWY_INLINE void ByReset(size_t n, const C* drh, size_t slot) const {
    const C *const rs = Gate(n, kSavedR), *const hs = At(c_.h, c_.stride_h, n);
    C *const dr = Gradient(n, 2), *const dh = At(c_.dh, padded_, slot);
    for (size_t j = 0; j < padded_; j += kLanes) {
      const auto mask = hn::FirstN(d_, spec_.H - j);
      const V by_rh = hn::LoadU(d_, drh + j);
      const V by_r = hn::Mul(hn::Mul(by_rh, hn::LoadU(d_, hs + j)), hn::LoadU(d_, dr + j));
      hn::StoreU(hn::IfThenElseZero(mask, by_r), d_, dr + j);
      const V carry = hn::IfThenElseZero(mask, hn::Mul(by_rh, hn::LoadU(d_, rs + j)));
      hn::StoreU(hn::Add(hn::LoadU(d_, dh + j), carry), d_, dh + j);
    }
  }

  // Rows of a step's gradients, from one gate on. The list of all rows is not needed while there are steps.
  const C* const* StepInputs(size_t first_n, size_t count, size_t gate) {
    for (size_t i = 0; i < count; ++i) scratch_.inputs[i] = Gradient(first_n + first_ + i, gate);
    return scratch_.inputs;
  }

  // dX += dz·Wz + dr·Wr + dn·Wh
  void ByX() {
    const Geometry columns = WholePanels(spec_.I, kLanes);
    const C* const* const inputs = Inputs(c_.g, c_.stride_g);
    for (size_t i = 0; i < kRowsOfX; ++i) scratch_.step_index[i] = i;
    size_t done = 0;
    while (done < count_) {
      const size_t some = HWY_MIN(kRowsOfX, count_ - done);
      std::memset(scratch_.dx, 0, some * columns.H * sizeof(C));
      Product(Gemm<C, 1>{{},
                         columns,
                         inputs + done,
                         3 * padded_,
                         c_.by_x,
                         scratch_.step_index,
                         columns.H,
                         {{scratch_.dx, nullptr, 0}}},
              some);
      for (size_t i = 0; i < some; ++i) Scatter(scratch_.index[done + i], scratch_.dx + i * columns.H);
      done += some;
    }
  }

  void Scatter(size_t n, const C* from) {
    const auto [step, slot] = PlaceOf(n);
    C* const to = Numbers(call_.dX, TimeOf(Row(slot), step), 0, Row(slot));
    for (size_t j = 0; j < spec_.I; ++j) to[j] += from[j];
  }

  const GradientChunk& c_;
  const GradientCall& call_;
  const Spec& spec_;
  const PackedDirection& weights_;
  const Geometry geometry_;
  const size_t padded_;
  const size_t first_, last_;
  RowsScratch<C> scratch_;
  size_t count_ = 0;
  const D d_;
};

// --- sums over rows: the gradients by the weights

// The tile's rows and vectors: a sum each, and as many under way as hide a multiply-add's latency.
inline constexpr size_t kTileRows = kLargeTiles ? 8 : 4;
inline constexpr size_t kTileVectors = 3;
// The rows n of a block, whose part of X or h stays in the first-level cache.
inline constexpr size_t kRowsOfBlock = 128;

// to[i][v] += Σ over n of a[n][i] · b[n][v]
template <size_t kRows, size_t kVectors, class D, class C = hn::TFromD<D>>
HWY_INLINE void AddOuter(D d, size_t count, const C* a, const C* b, C* to, size_t stride) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  hn::Vec<D> sums[kRows][kVectors];
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::LoadU(d, to + i * stride + v * kLanes);
  }
  for (size_t n = 0; n < count; ++n, a += kTileRows, b += kVectors * kLanes) {
    hn::Vec<D> row[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) {
      const auto factor = hn::Set(d, a[i]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) sums[i][v] = MultiplyAdd(factor, row[v], sums[i][v]);
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[i][v], d, to + i * stride + v * kLanes);
  }
}

// The operands of the sums over n, side by side as they are read, so that each lies in few pages of memory.
template <class C>
class WeightsScratch {
 public:
  WeightsScratch(const GradientChunk& chunk, unsigned char* scratch)
      : padded_(chunk.packed->geometry().padded()),
        tiles_((padded_ + kTileRows - 1) / kTileRows),
        rows_(chunk.rows),
        gates_(reinterpret_cast<C*>(scratch)),
        columns_(gates_ + 4 * tiles_ * kTileRows * rows_) {}

  static size_t Bytes(const GradientChunk& chunk, size_t rows) {
    const size_t padded = chunk.packed->geometry().padded(), tiles = (padded + kTileRows - 1) / kTileRows;
    return (4 * tiles * kTileRows + kTileVectors * hn::MaxLanes(hn::ScalableTag<C>())) * rows * sizeof(C);
  }

  // [gate][tile][n][kTileRows]
  void PackGates(const GradientChunk& chunk, size_t gates) {
    const C* const from = static_cast<const C*>(chunk.g);
    for (size_t g = 0; g < gates; ++g) {
      for (size_t t = 0; t < tiles_; ++t) {
        const size_t width = HWY_MIN(kTileRows, padded_ - t * kTileRows);
        const C* row = from + g * padded_ + t * kTileRows;
        C* to = gates_ + (g * tiles_ + t) * rows_ * kTileRows;
        for (size_t n = 0; n < rows_; ++n, row += chunk.stride_g, to += kTileRows) {
          std::memcpy(to, row, width * sizeof(C));
        }
      }
    }
  }

  // [n][vectors], of rows that begin at row(n)
  template <class Row>
  void PackColumns(const Row& row, size_t vectors) {
    const hn::ScalableTag<C> d;
    C* to = columns_;
    for (size_t n = 0; n < rows_; ++n) {
      const C* const from = row(n);
      for (size_t v = 0; v < vectors; ++v, to += hn::MaxLanes(d))
        hn::StoreU(hn::LoadU(d, from + v * hn::MaxLanes(d)), d, to);
    }
  }

  // Adds the sums of a gate to its rows of `to`, in those columns.
  HWY_NOINLINE void Add(size_t gate, size_t vectors, C* to, size_t stride) const {
    const hn::ScalableTag<C> d;
    for (size_t begin = 0; begin < rows_; begin += kRowsOfBlock) {
      const size_t some = HWY_MIN(kRowsOfBlock, rows_ - begin);
      const C* const b = columns_ + begin * vectors * hn::MaxLanes(d);
      for (size_t t = 0; t < tiles_; ++t) {
        const C* const a = gates_ + ((gate * tiles_ + t) * rows_ + begin) * kTileRows;
        C* const at = to + t * kTileRows * stride;
        WithRows<1, kTileRows>(HWY_MIN(kTileRows, padded_ - t * kTileRows), [&](auto rows) HWY_ATTR {
          if (vectors == 3) {
            AddOuter<rows, 3>(d, some, a, b, at, stride);
          } else if (vectors == 2) {
            AddOuter<rows, 2>(d, some, a, b, at, stride);
          } else {
            AddOuter<rows, 1>(d, some, a, b, at, stride);
          }
        });
      }
    }
  }

 private:
  const size_t padded_, tiles_, rows_;
  C* const gates_;
  C* const columns_;
};

template <class C>
void GradientsOfWeights(const GradientChunk& c, size_t first_panel, size_t last_panel, unsigned char* memory) {
  const size_t lanes = hn::MaxLanes(hn::ScalableTag<C>());
  const Spec& spec = c.packed->spec();
  const size_t padded = c.packed->geometry().padded(), columns = WholePanels(spec.I, lanes).H;
  const size_t panel = kTileVectors * lanes, of_x = (columns + panel - 1) / panel;
  const bool after = spec.linear_before_reset;
  WeightsScratch<C> scratch(c, memory);
  scratch.PackGates(c, after ? 4 : 3);
  for (size_t p = first_panel; p < last_panel; ++p) {
    const bool is_x = p < of_x;
    const size_t begin = (is_x ? p : p - of_x) * panel, width = is_x ? columns : padded;
    const size_t vectors = HWY_MIN(kTileVectors, (width - begin) / lanes);
    if (is_x) {
      scratch.PackColumns([&](size_t n) { return static_cast<const C*>(c.x) + n * c.stride_x + begin; }, vectors);
      for (size_t gate = 0; gate < 3; ++gate) {
        scratch.Add(gate, vectors, static_cast<C*>(c.dW) + gate * padded * columns + begin, columns);
      }
      continue;
    }
    C* const to = static_cast<C*>(c.dR) + begin;
    scratch.PackColumns([&](size_t n) { return static_cast<const C*>(c.h) + n * c.stride_h + begin; }, vectors);
    for (size_t gate = 1; gate < (after ? 4 : 3); ++gate) {
      scratch.Add(gate, vectors, to + (gate - 1) * padded * padded, padded);
    }
    if (after) continue;
    const size_t q = kSavedQ * padded + begin;
    scratch.PackColumns([&](size_t n) { return static_cast<const C*>(c.gates[n]) + q; }, vectors);
    scratch.Add(0, vectors, to + 2 * padded * padded, padded);
  }
  if (first_panel != 0 || last_panel == 0) return;
  C* const sums = static_cast<C*>(c.dB);
  for (size_t n = 0; n < c.rows; ++n) {
    const C* const row = static_cast<const C*>(c.g) + n * c.stride_g;
    for (size_t j = 0; j < (after ? 4 : 3) * padded; ++j) sums[j] += row[j];
  }
}

template <class C>
size_t ScratchOfWeights(const GradientChunk& chunk, size_t rows) {
  return WeightsScratch<C>::Bytes(chunk, rows);
}

template <class C>
size_t PackedColumns(size_t K, size_t N) {
  return K * WholePanels(N, hn::MaxLanes(hn::ScalableTag<C>())).H * sizeof(C);
}

template <class C>
void PackColumns(const void* matrix, size_t H, size_t N, const size_t* gates, size_t count, void* packed) {
  const size_t lanes = hn::MaxLanes(hn::ScalableTag<C>()), padded = WholePanels(H, lanes).H;
  C* to = static_cast<C*>(packed);
  for (size_t begin = 0; begin < N; begin += lanes) {
    const size_t width = HWY_MIN(lanes, N - begin);
    for (size_t g = 0; g < count; ++g) {
      const C* from = static_cast<const C*>(matrix) + gates[g] * H * N + begin;
      for (size_t k = 0; k < padded; ++k, from += N, to += lanes) {
        const size_t some = k < H ? width : 0;
        for (size_t i = 0; i < lanes; ++i) to[i] = i < some ? from[i] : C{0};
      }
    }
  }
}

template <class C>
void RunRows(const GradientChunk& chunk, size_t first_slot, size_t last_slot, unsigned char* scratch) {
  GradientsOfRows<C>(chunk, first_slot, last_slot, scratch).Run();
}

template <class C>
size_t ScratchOfRows(const GradientChunk& chunk, size_t slots) {
  return RowsScratch<C>(chunk, slots, nullptr).bytes;
}

template <class C>
constexpr GradientKernel MakeGradientKernel() {
  return {hn::MaxLanes(hn::ScalableTag<C>()),
          &PackedColumns<C>,
          &PackColumns<C>,
          &RunRows<C>,
          &ScratchOfRows<C>,
          &ScratchOfWeights<C>,
          &GradientsOfWeights<C>};
}

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
