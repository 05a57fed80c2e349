// The backward pass over a chunk of steps. Gates are those that the call has saved, or are recomputed from X and the
// states. Then, from the last step to the first, with dh the gradient of the loss with respect to the new state, and a
// prime for an activation's derivative:
//
// clang-format off
//   dn = dh∘(1 - z)∘g'                            with respect to n's argument
//   dz = dh∘(h - n)∘f'                            with respect to z's argument; with attention, times 1 - a (DIEN: a)
//   da = -Σ dh∘(h - n)∘z                          with attention; z is the gate before the score scales it
//   da = -Σ dh∘(h - n)∘(1 - z)                    with DIEN's attention
//   dq = dn∘r                                     reset after, q = h·Rhᵀ + Rbh
//   dr = dn∘q∘f'                                  reset after
//   dr = (dn·Rh)∘h∘f'                             reset before
//   dh = dh∘z + dz·Rz + dr·Rr + dq·Rh             reset after: with respect to the previous state
//   dh = dh∘z + dz·Rz + dr·Rr + (dn·Rh)∘r         reset before: with respect to the previous state
//
//   dX = dz·Wz + dr·Wr + dn·Wh
//   dW = Σ (dz, dr, dn)ᵀ·x
//   dR = Σ (dz, dr, dq)ᵀ·h                        reset before, of n: Σ dnᵀ·(r∘h)
// clang-format on

#include <algorithm>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "native/gradients.h"
#include "native/kernels/training/derivatives-inl.h"
#include "native/kernels/training/gemm-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_TRAINING_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_TRAINING_BACKWARD_INL_H_
#undef ONEGRU_NATIVE_KERNELS_TRAINING_BACKWARD_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_TRAINING_BACKWARD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// The number of rows of dX that are computed together.
inline constexpr size_t kRowsOfX = 64;

template <class C>
struct RowsScratch {
  size_t* entries;     // of all steps of these slots
  size_t* step_index;  // of the rows of a step
  const C** inputs;
  C* drh;
  C* dx;
  size_t bytes;

  RowsScratch(const GradientChunk& chunk, size_t slots, unsigned char* base) {
    const size_t lanes = hn::MaxLanes(hn::ScalableTag<C>()), steps = chunk.end - chunk.begin;
    const Spec& spec = chunk.packed->spec();
    MemoryLayout layout;
    const auto reserve = [&]<class T>(T*& array, size_t count) {
      array = reinterpret_cast<T*>(base + layout.Reserve(count * sizeof(T)));
    };
    reserve(entries, slots * steps);
    reserve(step_index, HWY_MAX(slots, kRowsOfX));
    reserve(inputs, slots * steps);
    reserve(drh, slots * WholePanels(spec.H, lanes).units);
    reserve(dx, kRowsOfX * WholePanels(spec.I, lanes).units);
    bytes = layout.bytes;
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
    GatherRows();
    Gates();
    for (size_t step = c_.end; step-- > c_.begin;) Step(step);
    if (call_.dX.data != nullptr) AddToDX();
  }

 private:
  using D = hn::ScalableTag<C>;
  using V = hn::Vec<D>;
  static constexpr size_t kLanes = hn::MaxLanes(D());

  C* At(void* buffer, size_t stride, size_t entry) const { return static_cast<C*>(buffer) + entry * stride; }
  C* Gradient(size_t entry, GradientGate gate) const { return At(c_.g, c_.stride_g, entry) + gate * padded_; }
  size_t Last(size_t step) const { return HWY_MIN(last_, c_.active[step - c_.begin]); }
  size_t Row(size_t slot) const { return static_cast<size_t>(c_.order[slot]); }
  size_t Length(size_t row) const {
    return call_.lengths == nullptr ? call_.T : static_cast<size_t>(call_.lengths[row]);
  }
  size_t TimeOf(size_t row, size_t step) const { return spec_.reversed[c_.d] ? Length(row) - 1 - step : step; }
  bool IsStateReset(size_t t, size_t row) const { return call_.resets != nullptr && call_.resets[t * call_.B + row]; }
  C Attention(size_t t, size_t row) const {
    return spec_.attention ? *reinterpret_cast<const C*>(call_.attention.at(t, 0, row)) : C{0};
  }
  static C* Numbers(const Rows& rows, size_t t, size_t d, size_t row) {
    return reinterpret_cast<C*>(rows.at(t, d, row));
  }

  // Copies X and the previous states, padded with zeros to full vectors.
  void GatherRows() {
    const size_t x_padded = WholePanels(spec_.I, kLanes).units;
    for (size_t step = c_.begin; step < c_.end; ++step) {
      for (size_t slot = first_; slot < Last(step); ++slot) {
        const size_t entry = c_.first[step - c_.begin] + slot, row = Row(slot), t = TimeOf(row, step);
        scratch_.entries[count_++] = entry;
        Copy(Numbers(call_.X, t, 0, row), spec_.I, x_padded, At(c_.x, c_.stride_x, entry));
        const bool is_state_reset = IsStateReset(t, row);
        const C* state = nullptr;
        if (is_state_reset ? call_.resets_to_initial : step == 0) {
          if (call_.initial_h.data != nullptr) state = Numbers(call_.initial_h, 0, c_.d, row);
        } else if (!is_state_reset) {
          state = Numbers(call_.Y, TimeOf(row, step - 1), c_.d, row);
        }
        Copy(state, spec_.H, padded_, At(c_.h, c_.stride_h, entry));
      }
    }
  }

  static void Copy(const C* from, size_t count, size_t padded, C* to) {
    if (from == nullptr) count = 0;
    if (count != 0) std::memcpy(to, from, count * sizeof(C));
    std::memset(to + count, 0, (padded - count) * sizeof(C));
  }

  const C* const* Inputs(void* buffer, size_t stride, size_t offset = 0) {
    for (size_t i = 0; i < count_; ++i) scratch_.inputs[i] = At(buffer, stride, scratch_.entries[i]) + offset;
    return scratch_.inputs;
  }

  // Gets z, r, n and q from the call or recomputes them. Stores the activations' derivatives in place of the gradients.
  void Gates() {
    for (size_t i = 0; i < count_; ++i) c_.gates[scratch_.entries[i]] = GatesOf(scratch_.entries[i]);
    if (call_.gates.data != nullptr) return FindSlopesOfSavedGates();
    C *const z = static_cast<C*>(c_.s), *const r = z + padded_, *const n = r + padded_, *const q = n + padded_;
    const C *const bx = static_cast<const C*>(weights_.bx), *const bn = static_cast<const C*>(weights_.bn);
    Product(Gemm<C, 3>{{},
                       geometry_,
                       Inputs(c_.x, c_.stride_x),
                       spec_.I,
                       weights_.W,
                       scratch_.entries,
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
                         scratch_.entries,
                         c_.stride_s,
                         {{z, nullptr, 0}, {r, nullptr, 0}, {q, bn, kLanes}}},
              count_);
    } else {
      Product(Gemm<C, 2>{{},
                         geometry_,
                         Inputs(c_.h, c_.stride_h),
                         spec_.H,
                         weights_.R,
                         scratch_.entries,
                         c_.stride_s,
                         {{z, nullptr, 0}, {r, nullptr, 0}}},
              count_);
    }
    for (size_t i = 0; i < count_; ++i) {
      const size_t entry = scratch_.entries[i];
      C *const zs = Gate(entry, kSavedZ), *const rs = Gate(entry, kSavedR), *const qs = Gate(entry, kSavedQ);
      C *const ns = Gate(entry, kSavedN), *const hs = At(c_.h, c_.stride_h, entry);
      for (size_t j = 0; j < padded_; j += kLanes) {
        Apply(spec_.f[c_.d], hn::LoadU(d_, zs + j), zs + j, Gradient(entry, kGradientZ) + j);
        const V r_j = Apply(spec_.f[c_.d], hn::LoadU(d_, rs + j), rs + j, Gradient(entry, kGradientR) + j);
        if (after) {
          Apply(spec_.g[c_.d], MultiplyAdd(r_j, hn::LoadU(d_, qs + j), hn::LoadU(d_, ns + j)), ns + j,
                Gradient(entry, kGradientN) + j);
        } else {
          hn::StoreU(hn::Mul(r_j, hn::LoadU(d_, hs + j)), d_, qs + j);
        }
      }
    }
    if (after) return;
    const C* const* const rh = Inputs(q, c_.stride_s);
    Product(Gemm<C, 1>{{}, geometry_, rh, spec_.H, weights_.Rh, scratch_.entries, c_.stride_s, {{n, nullptr, 0}}},
            count_);
    for (size_t i = 0; i < count_; ++i) {
      C* const ns = Gate(scratch_.entries[i], kSavedN);
      for (size_t j = 0; j < padded_; j += kLanes) {
        Apply(spec_.g[c_.d], hn::LoadU(d_, ns + j), ns + j, Gradient(scratch_.entries[i], kGradientN) + j);
      }
    }
  }

  // Saved gates are only of Sigmoid and Tanh without a clip: the caller saves no others.
  void FindSlopesOfSavedGates() {
    const V one = hn::Set(d_, C{1});
    for (size_t i = 0; i < count_; ++i) {
      const size_t entry = scratch_.entries[i];
      C* const qs = Gate(entry, kSavedQ);
      const C *const zs = Gate(entry, kSavedZ), *const rs = Gate(entry, kSavedR), *const ns = Gate(entry, kSavedN);
      const C* const hs = At(c_.h, c_.stride_h, entry);
      for (size_t j = 0; j < padded_; j += kLanes) {
        const V z = hn::LoadU(d_, zs + j), r = hn::LoadU(d_, rs + j), n = hn::LoadU(d_, ns + j);
        hn::StoreU(hn::Mul(z, hn::Sub(one, z)), d_, Gradient(entry, kGradientZ) + j);
        hn::StoreU(hn::Mul(r, hn::Sub(one, r)), d_, Gradient(entry, kGradientR) + j);
        hn::StoreU(NegMultiplyAdd(n, n, one), d_, Gradient(entry, kGradientN) + j);
        if (!spec_.linear_before_reset) hn::StoreU(hn::Mul(r, hn::LoadU(d_, hs + j)), d_, qs + j);
      }
    }
  }

  C* Gate(size_t entry, SavedGate gate) const { return static_cast<C*>(c_.gates[entry]) + gate * padded_; }
  C* GatesOf(size_t entry) const {
    if (call_.gates.data == nullptr) return At(c_.s, c_.stride_s, entry);
    const auto [step, slot] = StepAndSlotOf(entry);
    return Numbers(call_.gates, TimeOf(Row(slot), step), c_.d, Row(slot));
  }
  // Returns the step and the slot of an entry.
  std::pair<size_t, size_t> StepAndSlotOf(size_t entry) const {
    const size_t* const end = c_.first + (c_.end - c_.begin);
    const size_t step = static_cast<size_t>(std::upper_bound(c_.first, end, entry) - c_.first) - 1;
    return {c_.begin + step, entry - c_.first[step]};
  }

  // Computes an activation and its derivative, which is 0 where the argument is clipped.
  HWY_INLINE V Apply(const Activation& activation, V x, C* value, C* derivative) const {
    const V bound = hn::Set(d_, static_cast<C>(spec_.clip));
    const V within = Clip(d_, x, bound);
    const V y = Activate(d_, activation, within);
    hn::StoreU(y, d_, value);
    const V slope = Derivative(d_, activation, within, y);
    hn::StoreU(hn::IfThenElseZero(hn::Le(hn::Abs(x), bound), slope), d_, derivative);
    return y;
  }

  // Computes the gradients of a step.
  void Step(size_t step) {
    const size_t last = Last(step), first_entry = c_.first[step - c_.begin];
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
      const C da = after ? Blend<true>(first_entry + slot, dh, Attention(t, row))
                         : Blend<false>(first_entry + slot, dh, Attention(t, row));
      if (call_.d_attention.data != nullptr) *Numbers(call_.d_attention, t, 0, row) += da;
    }
    const size_t count = last - first_;
    for (size_t i = 0; i < count; ++i) scratch_.step_index[i] = i;
    const Geometry padded_units{padded_, kLanes};
    if (!after) {
      std::memset(scratch_.drh, 0, count * padded_ * sizeof(C));
      Product(OfLiveUnits(Gemm<C, 1>{{},
                                     padded_units,
                                     StepInputs(first_entry, count, kGradientN),
                                     padded_,
                                     c_.packed_Rh,
                                     scratch_.step_index,
                                     padded_,
                                     {{scratch_.drh, nullptr, 0}}}),
              count);
      for (size_t i = 0; i < count; ++i) BackThroughR(first_entry + first_ + i, scratch_.drh + i * padded_, first_ + i);
    }
    Product(OfLiveUnits(Gemm<C, 1>{{},
                                   padded_units,
                                   StepInputs(first_entry, count, kGradientZ),
                                   (after ? 3 : 2) * padded_,
                                   c_.packed_R,
                                   scratch_.step_index,
                                   padded_,
                                   {{At(c_.dh, padded_, first_), nullptr, 0}}}),
            count);
    for (size_t slot = first_; slot < last; ++slot) {
      const size_t row = Row(slot), t = TimeOf(row, step);
      C* const dh = At(c_.dh, padded_, slot);
      const bool is_state_reset = IsStateReset(t, row);
      if ((is_state_reset ? call_.resets_to_initial : step == 0) && call_.d_initial_h.data != nullptr) {
        C* const to = Numbers(call_.d_initial_h, 0, c_.d, row);
        for (size_t j = 0; j < spec_.H; ++j) to[j] += dh[j];
      }
      if (is_state_reset) std::memset(dh, 0, padded_ * sizeof(C));
    }
  }

  // Computes dn, dz and, with reset after, dr and dq. dh becomes dh∘z. Returns da.
  template <bool kAfter>
  HWY_INLINE C Blend(size_t entry, C* dh, C a) const {
    const C *const zs = Gate(entry, kSavedZ), *const rs = Gate(entry, kSavedR);
    const C *const ns = Gate(entry, kSavedN), *const qs = Gate(entry, kSavedQ);
    const C* const hs = At(c_.h, c_.stride_h, entry);
    C *const dn = Gradient(entry, kGradientN), *const dz = Gradient(entry, kGradientZ),
             *const dr = Gradient(entry, kGradientR), *const dq = Gradient(entry, kGradientQ);
    const V one = hn::Set(d_, C{1});
    // z is factor·z_raw + offset; without attention a is 0.
    const V factor = hn::Set(d_, spec_.has_dien_attention ? a : C{1} - a),
            offset = hn::Set(d_, spec_.has_dien_attention ? C{1} - a : C{0});
    V da = hn::Zero(d_);
    for (size_t j = 0; j < padded_; j += kLanes) {
      const auto mask = hn::FirstN(d_, spec_.H - j);  // elements after H are arbitrary
      const V dh_j = hn::LoadU(d_, dh + j), z_raw = hn::LoadU(d_, zs + j), z = MultiplyAdd(factor, z_raw, offset);
      const V dh_times_h_minus_n = hn::Mul(dh_j, hn::Sub(hn::LoadU(d_, hs + j), hn::LoadU(d_, ns + j)));
      const V scaled = spec_.has_dien_attention ? hn::Sub(one, z_raw) : z_raw;
      da = hn::Sub(da, hn::IfThenElseZero(mask, hn::Mul(dh_times_h_minus_n, scaled)));
      const V dz_j = hn::Mul(hn::Mul(dh_times_h_minus_n, factor), hn::LoadU(d_, dz + j));
      const V dn_j = hn::IfThenElseZero(mask, hn::Mul(hn::Mul(dh_j, hn::Sub(one, z)), hn::LoadU(d_, dn + j)));
      hn::StoreU(hn::IfThenElseZero(mask, dz_j), d_, dz + j);
      hn::StoreU(dn_j, d_, dn + j);
      hn::StoreU(hn::IfThenElseZero(mask, hn::Mul(dh_j, z)), d_, dh + j);
      if constexpr (kAfter) {
        const V dr_j = hn::Mul(hn::Mul(dn_j, hn::LoadU(d_, qs + j)), hn::LoadU(d_, dr + j));
        hn::StoreU(hn::IfThenElseZero(mask, dr_j), d_, dr + j);
        hn::StoreU(hn::IfThenElseZero(mask, hn::Mul(dn_j, hn::LoadU(d_, rs + j))), d_, dq + j);
      }
    }
    if (!spec_.attention) return C{0};
    C sum{0};
    C parts[kLanes];
    hn::StoreU(da, d_, parts);
    for (const C part : parts) sum += part;
    return sum;
  }

  // With reset before: computes dr, and adds (dn·Rh)∘r to dh.
  HWY_INLINE void BackThroughR(size_t entry, const C* drh, size_t slot) const {
    const C *const rs = Gate(entry, kSavedR), *const hs = At(c_.h, c_.stride_h, entry);
    C *const dr = Gradient(entry, kGradientR), *const dh = At(c_.dh, padded_, slot);
    for (size_t j = 0; j < padded_; j += kLanes) {
      const auto mask = hn::FirstN(d_, spec_.H - j);
      const V drh_j = hn::LoadU(d_, drh + j);
      const V dr_j = hn::Mul(hn::Mul(drh_j, hn::LoadU(d_, hs + j)), hn::LoadU(d_, dr + j));
      hn::StoreU(hn::IfThenElseZero(mask, dr_j), d_, dr + j);
      const V carry = hn::IfThenElseZero(mask, hn::Mul(drh_j, hn::LoadU(d_, rs + j)));
      hn::StoreU(hn::Add(hn::LoadU(d_, dh + j), carry), d_, dh + j);
    }
  }

  // Returns the rows of a step's gradients, from one gate on. No step needs the list of all rows, which they replace.
  const C* const* StepInputs(size_t first_entry, size_t count, GradientGate gate) {
    for (size_t i = 0; i < count; ++i) scratch_.inputs[i] = Gradient(first_entry + first_ + i, gate);
    return scratch_.inputs;
  }

  // dX += dz·Wz + dr·Wr + dn·Wh
  void AddToDX() {
    const Geometry columns = WholePanels(spec_.I, kLanes);
    const C* const* const inputs = Inputs(c_.g, c_.stride_g);
    for (size_t i = 0; i < kRowsOfX; ++i) scratch_.step_index[i] = i;
    size_t done = 0;
    while (done < count_) {
      const size_t some = HWY_MIN(kRowsOfX, count_ - done);
      std::memset(scratch_.dx, 0, some * columns.units * sizeof(C));
      Product(OfLiveUnits(Gemm<C, 1>{{},
                                     columns,
                                     inputs + done,
                                     3 * padded_,
                                     c_.packed_W,
                                     scratch_.step_index,
                                     columns.units,
                                     {{scratch_.dx, nullptr, 0}}}),
              some);
      for (size_t i = 0; i < some; ++i) Scatter(scratch_.entries[done + i], scratch_.dx + i * columns.units);
      done += some;
    }
  }

  // Skips the padding after the H units of each gate in a product whose inputs are gates, because it is zero.
  Gemm<C, 1> OfLiveUnits(Gemm<C, 1> op) const {
    if (spec_.H != padded_) op.segment = padded_, op.live = spec_.H;
    return op;
  }

  void Scatter(size_t entry, const C* from) {
    const auto [step, slot] = StepAndSlotOf(entry);
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

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
