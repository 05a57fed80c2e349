// How results reach the caller's arrays: where a step writes its rows of Y, and the windows of a helper.

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

// Where a step writes its rows of Y: to the caller's array or, on a helper, to a buffer.
template <class C>
struct RowsOfY {
  // With many rows, the results of a tile are far apart in Y, and writing whole rows after the step is up to 1.06 times
  // as fast. Rows of at most a cache line are written by tiles. Flushed states are written after they are flushed.
  void ChooseWriter(const RowView<C>& rows) {
    const bool is_wanted = rows.call.Y.data != nullptr && rows.IsLeader();
    by_tile =
        is_wanted && !rows.spec.flush_subnormals && (rows.active <= kMaxRowsOfOneTile || rows.spec.H * sizeof(C) <= 64);
    by_row = is_wanted && (rows.IsShared() || !by_tile);
  }

  // Finds the destinations of this step's rows of Y, if there are several. Usually they are equally spaced.
  HWY_INLINE void Locate(const RowView<C>& rows) {
    in_line = rows.item.order == nullptr && (rows.call.lengths == nullptr || !rows.reversed);
    if (HWY_UNLIKELY(!in_line) || rows.call.Y.data == nullptr || !rows.IsLeader()) return;
    to = AddressOf(rows, 0);
    pitch = rows.owner == ScratchOwner::kHelper ? static_cast<std::ptrdiff_t>(rows.spec.H * SizeOf(rows.spec.type))
                                                : rows.call.Y.row * static_cast<std::ptrdiff_t>(rows.item.stride);
  }

  // The destination of a row of Y in this step.
  HWY_INLINE char* AddressOf(const RowView<C>& rows, size_t slot) const {
    if (HWY_LIKELY(rows.owner != ScratchOwner::kHelper))
      return rows.call.Y.at(rows.TimeOf(slot, rows.step), rows.item.d, rows.Row(slot));
    return buffer + (place + slot) * rows.spec.H * SizeOf(rows.spec.type);
  }

  // Writes the part of Y that tiles have not written: all of it, or the units of other members.
  void WriteUnits(const RowView<C>& rows) const {
    const size_t begin = by_tile ? rows.last * kLanesOf<C> : 0;
    if (rows.call.Y.data == nullptr || begin >= rows.spec.H) return;
    for (size_t slot = 0; slot < rows.active; ++slot) {
      rows.Write(rows.State(rows.step + 1, slot) + begin, rows.spec.H - begin,
                 AddressOf(rows, slot) + begin * SizeOf(rows.spec.type));
    }
  }

  bool by_tile = false;      // whether tiles write to Y
  bool by_row = false;       // rows of Y, or parts of them, are written after each step
  bool in_line = false;      // whether this step's rows of Y are equally spaced
  char* to = nullptr;        // the first of these rows
  std::ptrdiff_t pitch = 0;  // the distance between them, in bytes
  char* buffer = nullptr;    // a helper's rows of Y
  size_t place = 0;          // the place of this step's rows in `buffer`
};

// The windows in which a helper reads the caller's memory and commits results (team.h). For other threads there is no
// claim, and they need no window.
template <class C>
struct Handover {
  explicit Handover(const RowView<C>& rows) : claim(rows.owner == ScratchOwner::kHelper ? rows.item.claim : nullptr) {}

  bool OpenWindow() { return claim == nullptr || claim->OpenWindow(); }
  void CloseWindow(bool done = false) {
    if (claim != nullptr) claim->CloseWindow(done);
  }

  // Opens a window and commits all steps before this one. The window stays open, for the inputs of the next chunk.
  HWY_INLINE bool CommitInWindow(const RowView<C>& rows, RowsOfY<C>& y) {
    return claim == nullptr || CommitSteps(rows, y);
  }

  // Writes the last states, and zeros after the end of each row while poll() is true. Then commits the rows.
  template <class Poll>
  void Finish(const RowView<C>& rows, RowsOfY<C>& y, Poll&& poll) {
    const Call& call = rows.call;
    const size_t H = rows.spec.H, size = SizeOf(rows.spec.type), d = rows.item.d;
    if (claim != nullptr) WriteY(rows, y);
    for (size_t slot = 0; slot < rows.count; ++slot) {
      const size_t length = rows.Length(slot);
      if (call.Y_h.data != nullptr) {
        char* const to = call.Y_h.at(0, d, rows.StateRow(slot));
        if (length == 0) {
          std::memset(to, 0, H * (call.wide_state ? sizeof(C) : size));
        } else if (call.wide_state) {
          std::memcpy(to, rows.State(length, slot), H * sizeof(C));
        } else {
          rows.Write(rows.State(length, slot), H, to);
        }
      }
      if (call.Y.data == nullptr) continue;
      for (size_t t = length; t < call.T && poll(); ++t) std::memset(call.Y.at(t, d, rows.Row(slot)), 0, H * size);
    }
    if (claim != nullptr) claim->SetCheckpoint({rows.begin + rows.count, 0, nullptr});
  }

  Claim* const claim;
  C* states = nullptr;         // of the last commit
  size_t committed_steps = 0;  // rows of Y are committed up to this step

 private:
  bool CommitSteps(const RowView<C>& rows, RowsOfY<C>& y) {
    if (!OpenWindow()) return false;
    WriteY(rows, y);
    if (rows.step != 0) rows.SaveStates(rows.step, states);
    claim->SetCheckpoint({rows.begin, rows.step, rows.step == 0 ? nullptr : states});
    return true;
  }

  // Copies the rows of Y up to this step to the caller's array.
  void WriteY(const RowView<C>& rows, RowsOfY<C>& y) {
    if (rows.call.Y.data == nullptr) return;
    const size_t size = rows.spec.H * SizeOf(rows.spec.type);
    const char* from = y.buffer;
    size_t running = rows.count;
    for (; committed_steps < rows.step; ++committed_steps) {
      while (rows.Length(running - 1) <= committed_steps) --running;
      for (size_t slot = 0; slot < running; ++slot, from += size)
        std::memcpy(rows.call.Y.at(rows.TimeOf(slot, committed_steps), rows.item.d, rows.Row(slot)), from, size);
    }
    y.place = 0;
  }
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
