// How results reach the caller's arrays: where a step writes its rows of Y, and the windows of a claimer.

#include <cstring>

#include "hwy/highway.h"
#include "native/kernels/rows-inl.h"
#include "native/kernels/products/tile-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_HANDOVER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_HANDOVER_INL_H_
#undef ONEGRU_NATIVE_KERNELS_HANDOVER_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_HANDOVER_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {

// Where a step writes its rows of Y: to the caller's array or, on a claimer, to a buffer.
template <class C>
struct RowsOfY {
  // With many rows, the results of a tile are far apart in Y, and writing whole rows after the step is up to 1.06 times
  // as fast. Rows of at most a cache line are written by tiles. Flushed states are written after they are flushed.
  void ChooseWriter(const RowView<C>& view) {
    const bool is_wanted = view.call.Y.data != nullptr && view.IsLeader();
    by_tile =
        is_wanted && !view.spec.flush_subnormals && (view.active <= kMaxRowsOfOneTile || view.spec.H * sizeof(C) <= 64);
    by_row = is_wanted && (view.IsShared() || !by_tile);
  }

  // Finds the destinations of this step's rows of Y, if there are several. Usually they are equally spaced.
  HWY_INLINE void Locate(const RowView<C>& view) {
    is_evenly_spaced = view.item.order == nullptr && (view.call.lengths == nullptr || !view.reversed);
    if (HWY_UNLIKELY(!is_evenly_spaced) || view.call.Y.data == nullptr || !view.IsLeader()) return;
    to = AddressOf(view, 0);
    pitch = view.owner == ScratchOwner::kClaimer
                ? static_cast<std::ptrdiff_t>(view.spec.H * SizeOf(view.spec.type))
                : view.call.Y.row_stride * static_cast<std::ptrdiff_t>(view.item.stride);
  }

  // The destination of a row of Y in this step.
  HWY_INLINE char* AddressOf(const RowView<C>& view, size_t slot) const {
    if (HWY_LIKELY(view.owner != ScratchOwner::kClaimer))
      return view.call.Y.at(view.TimeOf(slot, view.step), view.item.d, view.Row(slot));
    return buffer + (place + slot) * view.spec.H * SizeOf(view.spec.type);
  }

  // Writes the part of Y that tiles have not written: all of it, or the units of other members.
  void WriteUnits(const RowView<C>& view) const {
    const size_t begin = by_tile ? view.last * kLanesOf<C> : 0;
    if (view.call.Y.data == nullptr || begin >= view.spec.H) return;
    for (size_t slot = 0; slot < view.active; ++slot) {
      view.Write(view.State(view.step + 1, slot) + begin, view.spec.H - begin,
                 AddressOf(view, slot) + begin * SizeOf(view.spec.type));
    }
  }

  bool by_tile = false;           // whether tiles write to Y
  bool by_row = false;            // rows of Y, or parts of them, are written after each step
  bool is_evenly_spaced = false;  // whether this step's rows of Y are equally spaced
  char* to = nullptr;             // the first of these rows
  std::ptrdiff_t pitch = 0;       // the distance between them, in bytes
  char* buffer = nullptr;         // a claimer's rows of Y
  size_t place = 0;               // the place of this step's rows in `buffer`
};

// Opens and closes the windows of a claimer (team.h). A claimer reads the caller's memory and commits results only
// within a window. Other threads have no claim, so they need no window.
template <class C>
struct Handover {
  explicit Handover(const RowView<C>& view) : claim(view.owner == ScratchOwner::kClaimer ? view.item.claim : nullptr) {}

  bool OpenWindow() { return claim == nullptr || claim->OpenWindow(); }
  void CloseWindow(bool done = false) {
    if (claim != nullptr) claim->CloseWindow(done);
  }

  // Opens a window and commits all steps before this one. The window stays open, for the inputs of the next chunk.
  HWY_INLINE bool OpenWindowAndCommit(const RowView<C>& view, RowsOfY<C>& y) {
    return claim == nullptr || CommitSteps(view, y);
  }

  // Writes the last states, and zeros after the end of each row while poll() is true. Then commits the rows.
  template <class Poll>
  void Finish(const RowView<C>& view, RowsOfY<C>& y, Poll&& poll) {
    const Call& call = view.call;
    const size_t H = view.spec.H, size = SizeOf(view.spec.type), d = view.item.d;
    if (claim != nullptr) WriteY(view, y);
    for (size_t slot = 0; slot < view.count; ++slot) {
      const size_t length = view.Length(slot);
      if (call.Y_h.data != nullptr) {
        char* const to = call.Y_h.at(0, d, view.StateRow(slot));
        if (length == 0) {
          std::memset(to, 0, H * (call.wide_state ? sizeof(C) : size));
        } else if (call.wide_state) {
          std::memcpy(to, view.State(length, slot), H * sizeof(C));
        } else {
          view.Write(view.State(length, slot), H, to);
        }
      }
      if (call.Y.data == nullptr) continue;
      for (size_t t = length; t < call.T && poll(); ++t) std::memset(call.Y.at(t, d, view.Row(slot)), 0, H * size);
    }
    if (claim != nullptr) claim->SetCheckpoint({view.begin + view.count, 0, nullptr});
  }

  Claim* const claim;
  C* states = nullptr;         // of the last commit
  size_t committed_steps = 0;  // rows of Y are committed up to this step

 private:
  bool CommitSteps(const RowView<C>& view, RowsOfY<C>& y) {
    if (!OpenWindow()) return false;
    WriteY(view, y);
    if (view.step != 0) view.SaveStates(view.step, states);
    claim->SetCheckpoint({view.begin, view.step, view.step == 0 ? nullptr : states});
    return true;
  }

  // Copies the rows of Y up to this step to the caller's array.
  void WriteY(const RowView<C>& view, RowsOfY<C>& y) {
    if (view.call.Y.data == nullptr) return;
    const size_t size = view.spec.H * SizeOf(view.spec.type);
    const char* from = y.buffer;
    size_t running = view.count;
    for (; committed_steps < view.step; ++committed_steps) {
      while (view.Length(running - 1) <= committed_steps) --running;
      for (size_t slot = 0; slot < running; ++slot, from += size)
        std::memcpy(view.call.Y.at(view.TimeOf(slot, committed_steps), view.item.d, view.Row(slot)), from, size);
    }
    y.place = 0;
  }
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
