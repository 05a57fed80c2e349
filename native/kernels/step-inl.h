// What a step computes of the products, for both places of the reset gate. z and r of both are
//
//   z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
//   r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
//   n = g(clip(x·Whᵀ + (r∘h)·Rhᵀ + Wbh + Rbh))       reset before
//   n = g(clip(x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh))       reset after
//   z = (1 - a)·z                                     with attention
//   h = (1 - z)∘n + z∘h

#include <limits>

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
namespace hn = hwy::HWY_NAMESPACE;

// C: the type that is computed in. S: the type that matrices are stored in.
template <class C, class S>
class StepOfRows : public Projection<C, S> {
 protected:
  using Base = Projection<C, S>;
  using Base::call_, Base::spec_, Base::geometry_, Base::padded_, Base::owner_, Base::io_is_compute_type_, Base::kLanes;
  using Base::first_, Base::last_, Base::step_, Base::active_, Base::h_rows_, Base::rh_, Base::z_;
  using Base::State, Base::PlaceOfY, Base::attention_step_, Base::weights_;
  using typename Base::D;

  StepOfRows(const WorkItem& item, ScratchOwner owner, unsigned char* own)
      : Base(item, owner, own),
        f_(spec_.f[item.d]),
        g_(spec_.g[item.d]),
        is_default_(f_.function == Function::kSigmoid && g_.function == Function::kTanh &&
                    spec_.clip == std::numeric_limits<double>::infinity()) {}

  // Reset after: all of the step.
  template <bool kBesideAhead>
  HWY_INLINE void StepResetAfter() {
    for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = State(step_, slot);
    ForOurTiles<kBesideAhead>(AfterOp<kBesideAhead>{this});
  }

  // Reset before: z and r∘h; then, once all members have r∘h, n and h.
  template <bool kBesideAhead>
  HWY_INLINE void GatesResetBefore() {
    for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = State(step_, slot);
    ForOurTiles<kBesideAhead>(GatesOp<kBesideAhead>{this});
  }
  template <bool kBesideAhead>
  HWY_INLINE void StateResetBefore() {
    for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = rh_ + slot * padded_;
    ForOurTiles<kBesideAhead>(StateOp<kBesideAhead>{this});
  }

  // Writes to Y what other members computed in this step.
  void WriteOthersUnits() const {
    const size_t begin = last_ * kLanes;
    if (call_.Y.data == nullptr || begin >= spec_.H) return;
    for (size_t slot = 0; slot < active_; ++slot) {
      this->Write(State(step_ + 1, slot) + begin, spec_.H - begin, PlaceOfY(slot) + begin * SizeOf(spec_.type));
    }
  }

 private:
  template <bool kBesideAhead, class Op>
  HWY_INLINE void ForOurTiles(const Op& op) {
    const bool backwards = ((step_ + call_.turn) & 1) != 0;
    if constexpr (kBesideAhead) {
      ForTiles<kWideAhead[Op::kGates]>(D(), geometry_, 1, first_, last_, backwards, op);
    } else if (this->is_few_) {
      ForFew(D(), geometry_, op);
    } else {
      ForTiles(D(), geometry_, active_, first_, last_, backwards, op);
    }
  }

  template <bool kBesideAhead>
  struct AfterOp {
    static constexpr size_t kGates = 3;
    StepOfRows* self;

    template <class Tile>
    HWY_INLINE void Sum(Tile& tile) const {
      if (self->projecting_ == Projecting::kByTile) self->ProjectTile(tile);
      tile.ForEach(ONEGRU_AT { at.z = self->Xp(at, kZ), at.r = self->Xp(at, kR), at.n = self->Bn(at); });
      self->template AddRecurrent<kBesideAhead>(self->weights_.R, tile);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows rows) const {
      rows.ForEach(ONEGRU_AT { at.r = self->F(at, at.r); });
      rows.ForEach(ONEGRU_AT { at.n = hn::MulAdd(at.r, at.n, self->Xp(at, kN)); });
      rows.ForEach(ONEGRU_AT { at.z = self->Attend(at, self->F(at, at.z)); });
    }

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      rows.ForEach(ONEGRU_AT { at.n = self->G(at, at.n); });
      rows.ForEach(ONEGRU_AT { self->Blend(at, at.z, at.n); });
    }
  };

  template <bool kBesideAhead>
  struct GatesOp {
    static constexpr size_t kGates = 2;
    StepOfRows* self;

    template <class Tile>
    HWY_INLINE void Sum(Tile& tile) const {
      if (self->projecting_ == Projecting::kByTile) self->ProjectTile(tile);
      tile.ForEach(ONEGRU_AT { at.z = self->Xp(at, kZ), at.r = self->Xp(at, kR); });
      self->template AddRecurrent<kBesideAhead>(self->weights_.R, tile);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows rows) const {
      rows.ForEach(ONEGRU_AT { at.r = self->F(at, at.r); });
      rows.ForEach(ONEGRU_AT { self->Put(at, hn::Mul(at.r, self->H(at)), self->rh_); });
      rows.ForEach(ONEGRU_AT { at.z = self->Attend(at, self->F(at, at.z)); });
    }

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      rows.ForEach(ONEGRU_AT { self->Put(at, at.z, self->z_); });
    }
  };

  template <bool kBesideAhead>
  struct StateOp {
    static constexpr size_t kGates = 1;
    StepOfRows* self;

    template <class Tile>
    HWY_INLINE void Sum(Tile& tile) const {
      tile.ForEach(ONEGRU_AT { at.n = self->Xp(at, kN); });
      self->template AddRecurrent<kBesideAhead>(self->weights_.N, tile);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows) const {}

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      rows.ForEach(ONEGRU_AT { at.n = self->G(at, at.n); });
      rows.ForEach(ONEGRU_AT { self->Blend(at, self->Get(at, self->z_), at.n); });
    }
  };

  enum Gate : size_t { kZ, kR, kN };

  template <class At, class V>
  HWY_INLINE V F(const At& at, V x) const {
    if (HWY_LIKELY(is_default_)) return Sigmoid(at.d, x);
    return Activate(at.d, f_, Clip(at.d, x, hn::Set(at.d, static_cast<C>(spec_.clip))));
  }
  template <class At, class V>
  HWY_INLINE V G(const At& at, V x) const {
    if (HWY_LIKELY(is_default_)) return Tanh(at.d, x);
    return Activate(at.d, g_, Clip(at.d, x, hn::Set(at.d, static_cast<C>(spec_.clip))));
  }

  // (1 - a)·z
  template <class At, class V>
  HWY_INLINE V Attend(const At& at, V z) const {
    if (HWY_LIKELY(!spec_.attention)) return z;
    return hn::Mul(hn::Set(at.d, C{1} - attention_step_[at.row]), z);
  }

  template <class At>
  HWY_INLINE auto Bn(const At& at) const {
    return hn::LoadU(at.d, static_cast<const C*>(weights_.bn) + at.panel * kLanes);
  }

  // Units in rows of scratch.
  template <class At>
  HWY_INLINE C* In(C* rows, const At& at) const {
    return rows + at.row * padded_ + at.panel * kLanes;
  }
  template <class At>
  HWY_INLINE auto Get(const At& at, C* rows) const {
    return hn::Load(at.d, In(rows, at));
  }
  template <class At, class V>
  HWY_INLINE void Put(const At& at, V units, C* rows) const {
    hn::Store(units, at.d, In(rows, at));
  }
  template <class At>
  HWY_INLINE auto H(const At& at) const {
    return Get(at, State(step_, 0));
  }

  // h = (1 - z)∘n + z∘h, to the next state and to Y.
  template <class At, class V>
  HWY_INLINE void Blend(const At& at, V z, V n) const {
    const V next = hn::MulAdd(hn::Sub(hn::Set(at.d, C{1}), z), n, hn::Mul(z, H(at)));  // n comes last
    C* const state = In(State(step_ + 1, 0), at);
    hn::Store(next, at.d, state);
    if (call_.Y.data == nullptr || owner_ == ScratchOwner::kMember) return;
    char* const y = PlaceOfY(at.row);
    if (HWY_UNLIKELY(!io_is_compute_type_)) return this->Narrow(state, at.width, y + 2 * at.panel * kLanes);
    C* const to = reinterpret_cast<C*>(y) + at.panel * kLanes;
    if (HWY_LIKELY(at.width == hn::MaxLanes(at.d))) return hn::StoreU(next, at.d, to);
    for (size_t i = 0; i < at.width; ++i) to[i] = state[i];
  }

  const Activation f_, g_;
  const bool is_default_;  // Sigmoid, Tanh and no clip
};

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
