// The products with x: xp = x·Wᵀ + biases.

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "native/kernels/ahead-inl.h"
#include "native/kernels/product-inl.h"
#include "native/kernels/rows-inl.h"
#include "native/kernels/tile-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_
#undef ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_PROJECTION_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// When they are computed.
enum class Projecting {
  kByChunk,  // for a chunk of steps, before the first of them
  kByTile,   // in the step, tile by tile, as each panel of W is best read just before that of R: a chunk of one step
  kByStep,   // before each step: one row, one panel, few inputs
  kAhead,    // for a chunk of kAheadRows steps, beside the products with h of the chunk before: one row
};

template <class C, class S>
class Projection : public ActiveRows<C> {
 protected:
  using Base = ActiveRows<C>;
  using Base::item_, Base::spec_, Base::geometry_, Base::padded_, Base::owner_, Base::first_, Base::last_;
  using Base::PlaceOf, Base::TakeInputs, Base::Close, Base::kLanes;
  using Base::shared_, Base::count_, Base::steps_, Base::step_, Base::y_step_, Base::active_;
  using Base::xp_, Base::x_rows_, Base::h_rows_, Base::x_block_, Base::attention_;
  using typename Base::D;

  Projection(const WorkItem& item, ScratchOwner owner, unsigned char* own)
      : Base(item, owner, own), weights_(item.packed->direction(item.d)) {}

  // Starts a chunk at this step, with `members` threads.
  void StartChunks(size_t members) {
    chunk_ = 0;
    is_first_of_chunk_ = true;
    projected_ = step_;
    ahead_.Drop();
    y_step_ = 0;
    is_few_ = count_ == 1 && !shared_ && geometry_.panels() <= kFewPanels;
    // Every member must decide alike, as the products of all share one buffer, whose layout depends on it.
    const size_t part_of_R = padded_ / members * 3 * spec_.H * sizeof(S);
    const bool is_ahead = kCanProjectAhead && count_ == 1 && steps_ - step_ >= kLeastStepsAhead &&
                          part_of_R >= kLeastBytesAhead && part_of_R < kLargeMatrix;
    const bool is_by_step = is_few_ && owner_ == ScratchOwner::kCaller && geometry_.panels() == 1 && spec_.D == 1 &&
                            spec_.I <= kMostInputsByStep && steps_ > 1;
    projecting_ = is_by_step ? Projecting::kByStep : is_ahead ? Projecting::kAhead : Projecting::kByChunk;
    xp_row_ = is_ahead ? 3 * kLanes : 3 * padded_;
    xp_panel_ = is_ahead ? kAheadRows * 3 * kLanes : 3 * kLanes;
  }

  bool IsAhead() const { return projecting_ == Projecting::kAhead; }
  // The most rows of a chunk.
  size_t MostOfChunk() const { return IsAhead() ? kAheadRows : item_.steps_at_once; }

  // The next chunk of steps.
  HWY_INLINE void PrepareNext() {
    is_first_of_chunk_ = true;
    IsAhead() ? PrepareAhead() : PrepareChunk();
    ++chunk_;
  }

  // For this step alone, of one row and one panel: it fits into the latency of the previous step. With more panels, or
  // two directions in turns, there is no such idle time.
  void PrepareStep() {
    this->TakeInput(step_, 0, 0, true);
    x_from_ = x_rows_;
    attention_step_ = attention_;
    xp_step_ = xp_to_ = xp_;
    ForFew(D(), geometry_, ProjectOp{this});
  }

  void EndStep() {
    xp_step_ += active_ * xp_row_;
    attention_step_ += active_;
    y_step_ += active_;
    is_first_of_chunk_ = false;
    ++step_;
  }

  // A tile's products with x, in the step.
  template <class Tile>
  HWY_INLINE void ProjectTile(const Tile& tile) {
    ProjectOne<Tile::kRows, Tile::kPanels>(tile.d, tile.row, tile.panel, tile.width);
  }

  // The products with x of a gate, in this step.
  template <class At>
  HWY_INLINE auto Xp(const At& at, size_t gate) const {
    return hn::LoadU(at.d, xp_step_ + at.row * xp_row_ + at.panel * xp_panel_ + gate * kLanes);
  }

  // sums += rows of h, or of r∘h · a packed matrix; beside it, what is done ahead.
  template <bool kBesideAhead, class Tile>
  HWY_INLINE void AddRecurrent(const void* matrix, Tile& tile) {
    using D = std::remove_const_t<decltype(tile.d)>;
    if constexpr (kBesideAhead && Tile::kRows == 1 && Tile::kPanels * Tile::kGates <= 4 &&
                  std::is_same_v<std::remove_const_t<decltype(tile.width)>, Whole<D>>) {
      if (ahead_.waiting()) {
        const S* panels[Tile::kPanels];
        PanelsOf(matrix, spec_.H, tile, panels);
        return ahead_.template MultiplyBoth<Tile::kPanels, Tile::kGates>(tile.d, spec_.H, h_rows_[tile.row], panels,
                                                                         tile.sums);
      }
    }
    AddProduct(matrix, spec_.H, h_rows_, tile);
  }

 private:
  // For as many steps as fit into the buffer.
  HWY_INLINE void PrepareChunk() {
    const size_t place = PlaceOf(chunk_, item_.steps_at_once);
    x_count_ = TakeInputs(projected_, item_.steps_at_once, place, !shared_);
    Close();
    x_from_ = x_rows_ + place;
    attention_step_ = attention_ + place;
    xp_step_ = xp_to_ = xp_;
    const bool is_by_tile = projected_ == step_ + 1 && !(IsJoint(x_count_) && first_ == geometry_.full_panels());
    projecting_ = is_by_tile ? Projecting::kByTile : Projecting::kByChunk;
    if (this->GoOn(x_count_ * (last_ - first_)) && !is_by_tile) Project(x_count_, first_);
  }

  // For the next chunk of steps: most of it, if not the first, is done already.
  void PrepareAhead() {
    const D d;
    const size_t whole = HWY_MIN(last_, geometry_.full_panels());
    const size_t place = PlaceOf(chunk_, kAheadRows), next = PlaceOf(chunk_ + 1, kAheadRows);
    const bool first = chunk_ == 0;
    size_t end = step_;
    size_t rows = first ? TakeInputs(end, kAheadRows, place, !shared_) : 0;
    projected_ = end = HWY_MIN(step_ + kAheadRows, steps_);
    const size_t next_rows = TakeInputs(end, kAheadRows, next, !shared_);
    Close();
    attention_step_ = attention_ + place;
    if (first) {
      xp_step_ = xp_;
      ProjectChunk(place, rows, xp_, first_);
    } else {
      ahead_.Finish(d, [this] { return this->GoOn(kAheadRows); });
      xp_step_ = xp_ahead_;
    }
    if (next_rows == 0) return;
    xp_ahead_ = xp_step_ == xp_ ? xp_ + kAheadRows * 3 * padded_ : xp_;
    ProjectChunk(next, next_rows, xp_ahead_, whole);
    for (size_t r = 0; r < kAheadRows; ++r) {
      const C* const x = r < next_rows ? x_rows_[next + r] : nullptr;
      C* const to = x_block_ + r;
      for (size_t k = 0; k < spec_.I; ++k) to[k * kAheadRows] = x == nullptr ? C{0} : x[k];
    }
    ahead_.Start(static_cast<const S*>(weights_.W), spec_.I, spec_.H, geometry_, first_, whole, x_block_,
                 static_cast<const C*>(weights_.bx), xp_ahead_);
  }

  // The panels from `first` on of a chunk, to `to`.
  void ProjectChunk(size_t place, size_t rows, C* to, size_t first) {
    x_from_ = x_rows_ + place;
    x_count_ = 0;
    xp_to_ = to;
    if (this->GoOn(rows * (last_ - first_))) Project(rows, first);
  }

  // Whether the gates of our last panel are computed side by side: it is so narrow that they fill at most two vectors,
  // and has so many inputs that it pays. A single row is bound by latency either way.
  bool IsJoint(size_t rows) const {
    const size_t full = geometry_.full_panels();
    return rows > 1 && last_ > full && 3 * geometry_.width(full) <= 2 * kLanes && spec_.I > kMostInputsByStep;
  }

  // Rows of X, our panels from `first` on.
  void Project(size_t rows, size_t first) {
    const bool joint = IsJoint(rows);
    ForTiles(D(), geometry_, rows, first, joint ? geometry_.full_panels() : last_, false, ProjectOp{this});
    if (!joint) return;
    if (3 * geometry_.width(last_ - 1) <= kLanes) {
      ProjectJoint<1>(rows);
    } else {
      ProjectJoint<2>(rows);
    }
  }

  template <size_t kVectors>
  void ProjectJoint(size_t rows) {
    const size_t panel = last_ - 1, width = geometry_.width(panel);
    C bias[kVectors * kLanes] = {};
    for (size_t i = 0; i < 3 * width; ++i) {
      bias[i] = static_cast<const C*>(weights_.bx)[panel * 3 * kLanes + i / width * kLanes + i % width];
    }
    SweepRows<1>(JointOp<kVectors>{this, bias}, D(), rows, panel, width);
  }

  struct ProjectOp {
    static constexpr size_t kGates = 3;
    Projection* self;

    template <class Tile>
    HWY_INLINE void Sum(Tile& tile) const {
      tile.ForEach(ONEGRU_AT {
        const C* const bias = static_cast<const C*>(self->weights_.bx) + at.panel * 3 * kLanes;
        at.z = hn::LoadU(at.d, bias);
        at.r = hn::LoadU(at.d, bias + kLanes);
        at.n = hn::LoadU(at.d, bias + 2 * kLanes);
      });
      self->PrefetchRowsAfter(tile);
      self->AddProduct(self->weights_.W, self->spec_.I, self->x_from_, tile);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows) const {}

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      rows.ForEach(ONEGRU_AT {
        C* const to = self->xp_to_ + at.row * self->xp_row_ + at.panel * self->xp_panel_;
        hn::StoreU(at.z, at.d, to);
        hn::StoreU(at.r, at.d, to + kLanes);
        hn::StoreU(at.n, at.d, to + 2 * kLanes);
      });
    }
  };

  // A narrow panel, its gates side by side.
  template <size_t kVectors>
  struct JointOp {
    static constexpr size_t kGates = kVectors;
    Projection* self;
    const C* bias;

    template <class Tile>
    HWY_INLINE void Sum(Tile& tile) const {
#pragma GCC unroll 16
      for (auto& row : tile.sums) {
#pragma GCC unroll 2
        for (size_t v = 0; v < kVectors; ++v) row[v] = hn::LoadU(tile.d, bias + v * kLanes);
      }
      self->PrefetchRowsAfter(tile);
      const S* const weights =
          static_cast<const S*>(self->weights_.W) + self->geometry_.offset(tile.panel, self->spec_.I, 3);
      MultiplyJoint(tile.d, self->spec_.I, self->x_from_ + tile.row, weights, tile.width, tile.sums);
    }

    template <class Rows>
    HWY_INLINE void Gates(Rows) const {}

    template <class Rows>
    HWY_INLINE void Finish(Rows rows) const {
      C gates[(kVectors + 1) * kLanes] = {};
      rows.ForEach(ONEGRU_AT {
        hn::StoreU(at.z, at.d, gates);
        if (kVectors == 2) hn::StoreU(at.r, at.d, gates + kLanes);
        C* const to = self->xp_to_ + at.row * self->xp_row_ + at.panel * self->xp_panel_;
        for (size_t g = 0; g < 3; ++g) hn::StoreU(hn::LoadU(at.d, gates + g * at.width), at.d, to + g * kLanes);
      });
    }
  };

  // Not inlined: a step has no registers to spare.
  template <size_t kRows, size_t kPanels, class D, class Width>
  HWY_NOINLINE void ProjectOne(D d, size_t row, size_t panel, Width width) {
    Do<kRows, kPanels>(ProjectOp{this}, d, row, panel, width);
  }

  // Prefetches the rows of X of the next tile: hardware would fetch each too late.
  template <class Tile>
  HWY_INLINE void PrefetchRowsAfter(const Tile& tile) const {
    const size_t begin = tile.row + Tile::kRows, end = begin + Tile::kRows;
    if (Tile::kRows < 4 || tile.panel != first_ || end > x_count_) return;
    for (size_t r = begin; r < end; ++r) {
      const char* const x = reinterpret_cast<const char*>(x_from_[r]);
      for (size_t byte = 0; byte < spec_.I * sizeof(C); byte += 64) hwy::Prefetch(x + byte);
    }
  }

  // Where a tile's panels of a packed matrix of K inputs begin.
  template <class Tile>
  HWY_INLINE void PanelsOf(const void* matrix, size_t K, const Tile& tile, const S* (&panels)[Tile::kPanels]) const {
#pragma GCC unroll 16
    for (size_t p = 0; p < Tile::kPanels; ++p) {
      panels[p] = static_cast<const S*>(matrix) + geometry_.offset(tile.panel + p, K, Tile::kGates);
    }
  }

  // sums += inputs · a packed matrix of K inputs.
  template <class Tile>
  HWY_INLINE void AddProduct(const void* matrix, size_t K, const C* const* inputs, Tile& tile) const {
    const S* panels[Tile::kPanels];
    PanelsOf(matrix, K, tile, panels);
    Multiply<Tile::kRows, Tile::kPanels, Tile::kGates>(tile.d, K, inputs + tile.row, panels, tile.width, tile.sums);
  }

 protected:
  const PackedDirection weights_;
  Projecting projecting_ = Projecting::kByChunk;
  bool is_few_ = false;            // one row, few panels
  size_t x_count_ = 0;             // rows of X that are multiplied together
  size_t chunk_ = 0;               // how many chunks were prepared
  bool is_first_of_chunk_ = true;  // this step
  size_t projected_ = 0;           // xp is there up to this step
  const C* attention_step_ = nullptr;

 private:
  Ahead<C, S> ahead_;
  size_t xp_row_ = 0, xp_panel_ = 0;  // how far rows and panels of xp lie apart
  C* xp_to_ = nullptr;                // where a tile puts it
  const C* xp_step_ = nullptr;        // that of this step
  C* xp_ahead_ = nullptr;             // that of the next chunk
  const C** x_from_ = nullptr;        // the rows of X that are multiplied
};

}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
