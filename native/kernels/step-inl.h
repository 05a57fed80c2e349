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
  using Base::call_, Base::spec_, Base::geometry_, Base::padded_, Base::holder_, Base::native_, Base::kLanes;
  using Base::first_, Base::last_, Base::step_, Base::active_, Base::h_rows_, Base::rh_, Base::z_;
  using Base::State, Base::PlaceOfY, Base::attention_step_, Base::weights_;
  using typename Base::D;

  StepOfRows(const Share& share, Holder holder, unsigned char* own)
      : Base(share, holder, own),
        f_(spec_.f[share.d]),
        g_(spec_.g[share.d]),
        is_default_(f_.function == Function::kSigmoid && g_.function == Function::kTanh &&
                    spec_.clip == std::numeric_limits<double>::infinity()) {}

  // Reset after: all of the step.
  template <bool kBesideAhead>
  HWY_INLINE void ComputeAfter() {
    for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = State(step_, slot);
    ForOurTiles<kBesideAhead>(AfterOp<kBesideAhead>{this});
  }

  // Reset before: z and r∘h; then, once all members have r∘h, n and h.
  template <bool kBesideAhead>
  HWY_INLINE void ComputeGates() {
    for (size_t slot = 0; slot < active_; ++slot) h_rows_[slot] = State(step_, slot);
    ForOurTiles<kBesideAhead>(GatesOp<kBesideAhead>{this});
  }
  template <bool kBesideAhead>
  HWY_INLINE void ComputeState() {
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
      tile.ForEach([&](auto at) ONEGRU_INLINE {
        at.z = hn::LoadU(tile.d, self->Projected(at));
        at.r = hn::LoadU(tile.d, self->Projected(at) + kLanes);
        at.n = hn::LoadU(tile.d, static_cast<const C*>(self->weights_.bn) + at.panel * kLanes);
      });
      self->template AddRecurrent<kBesideAhead>(self->weights_.R, tile);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows rows) const {
      const auto d = rows.tile.d;
      rows.ForEach([&](auto at) ONEGRU_INLINE { at.r = self->F(d, at.r); });
      rows.ForEach([&](auto at) ONEGRU_INLINE {
        at.n = hn::MulAdd(at.r, at.n, hn::LoadU(d, self->Projected(at) + 2 * kLanes));
      });
      rows.ForEach([&](auto at) ONEGRU_INLINE { at.z = self->Attend(d, self->F(d, at.z), at.row); });
    }

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      const auto d = rows.tile.d;
      rows.ForEach([&](auto at) ONEGRU_INLINE { at.n = self->G(d, at.n); });
      rows.ForEach([&](auto at) ONEGRU_INLINE { self->Blend(d, at.z, at.n, at); });
    }
  };

  template <bool kBesideAhead>
  struct GatesOp {
    static constexpr size_t kGates = 2;
    StepOfRows* self;

    template <class Tile>
    HWY_INLINE void Sum(Tile& tile) const {
      if (self->projecting_ == Projecting::kByTile) self->ProjectTile(tile);
      tile.ForEach([&](auto at) ONEGRU_INLINE {
        at.z = hn::LoadU(tile.d, self->Projected(at));
        at.r = hn::LoadU(tile.d, self->Projected(at) + kLanes);
      });
      self->template AddRecurrent<kBesideAhead>(self->weights_.R, tile);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows rows) const {
      const auto d = rows.tile.d;
      rows.ForEach([&](auto at) ONEGRU_INLINE { at.r = self->F(d, at.r); });
      rows.ForEach([&](auto at) ONEGRU_INLINE {
        hn::Store(hn::Mul(at.r, hn::Load(d, self->In(self->State(self->step_, 0), at))), d, self->In(self->rh_, at));
      });
      rows.ForEach([&](auto at) ONEGRU_INLINE { at.z = self->Attend(d, self->F(d, at.z), at.row); });
    }

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      rows.ForEach([&](auto at) ONEGRU_INLINE { hn::Store(at.z, rows.tile.d, self->In(self->z_, at)); });
    }
  };

  template <bool kBesideAhead>
  struct StateOp {
    static constexpr size_t kGates = 1;
    StepOfRows* self;

    template <class Tile>
    HWY_INLINE void Sum(Tile& tile) const {
      tile.ForEach([&](auto at) ONEGRU_INLINE { at.n = hn::LoadU(tile.d, self->Projected(at) + 2 * kLanes); });
      self->template AddRecurrent<kBesideAhead>(self->weights_.N, tile);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows) const {}

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      const auto d = rows.tile.d;
      rows.ForEach([&](auto at) ONEGRU_INLINE { at.n = self->G(d, at.n); });
      rows.ForEach([&](auto at) ONEGRU_INLINE { self->Blend(d, hn::Load(d, self->In(self->z_, at)), at.n, at); });
    }
  };

  template <class D, class V>
  HWY_INLINE V F(D d, V x) const {
    if (HWY_LIKELY(is_default_)) return Sigmoid(d, x);
    return Activate(d, f_, Clip(d, x, hn::Set(d, static_cast<C>(spec_.clip))));
  }
  template <class D, class V>
  HWY_INLINE V G(D d, V x) const {
    if (HWY_LIKELY(is_default_)) return Tanh(d, x);
    return Activate(d, g_, Clip(d, x, hn::Set(d, static_cast<C>(spec_.clip))));
  }

  // (1 - a)·z
  template <class D, class V>
  HWY_INLINE V Attend(D d, V z, size_t slot) const {
    if (HWY_LIKELY(!spec_.attention)) return z;
    return hn::Mul(hn::Set(d, C{1} - attention_step_[slot]), z);
  }

  // The place of a tile's units in rows of scratch.
  template <class At>
  HWY_INLINE C* In(C* rows, const At& at) const {
    return rows + at.row * padded_ + at.panel * kLanes;
  }

  // h = (1 - z)∘n + z∘h, to the next state and to Y.
  template <class D, class V, class At>
  HWY_INLINE void Blend(D d, V z, V n, const At& at) const {
    const V h = hn::Load(d, In(State(step_, 0), at));
    const V next = hn::MulAdd(hn::Sub(hn::Set(d, C{1}), z), n, hn::Mul(z, h));  // n comes last
    C* const state = In(State(step_ + 1, 0), at);
    hn::Store(next, d, state);
    if (call_.Y.data == nullptr || holder_ == Holder::kMember) return;
    char* const y = PlaceOfY(at.row);
    if (HWY_UNLIKELY(!native_)) return this->Narrow(state, at.width, y + 2 * at.panel * kLanes);
    C* const to = reinterpret_cast<C*>(y) + at.panel * kLanes;
    if (HWY_LIKELY(at.width == hn::MaxLanes(d))) return hn::StoreU(next, d, to);
    for (size_t i = 0; i < at.width; ++i) to[i] = state[i];
  }

  const Activation f_, g_;
  const bool is_default_;  // Sigmoid, Tanh and no clip
};

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
