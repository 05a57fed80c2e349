// The rows of a work item that a thread processes together: which they are, and where their elements and states lie.
//
// C: the compute type.

#include <algorithm>
#include <cstring>
#include <iterator>

#include "hwy/highway.h"
#include "native/kernel.h"
#include "native/kernels/products/arithmetic-inl.h"

#if defined(ONEGRU_NATIVE_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEGRU_NATIVE_KERNELS_ROWS_INL_H_
#undef ONEGRU_NATIVE_KERNELS_ROWS_INL_H_
#else
#define ONEGRU_NATIVE_KERNELS_ROWS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onegru {
namespace HWY_NAMESPACE {
inline namespace ONEGRU_ARITHMETIC {
namespace hn = hwy::HWY_NAMESPACE;

// The number of elements of a vector.
template <class C>
inline constexpr size_t kLanesOf = hn::MaxLanes(hn::ScalableTag<C>());

// The selected rows and the current step, with the addresses and the conversion of elements.
template <class C>
struct RowView {
  RowView(const WorkItem& item, ScratchOwner owner)
      : item(item),
        call(*item.call),
        spec(item.packed->spec()),
        geometry(item.packed->geometry()),
        padded(geometry.padded()),
        reversed(spec.reversed[item.d]),
        io_is_compute_type(SizeOf(spec.type) == sizeof(C)),
        owner(owner) {}

  bool IsLeader() const { return owner != ScratchOwner::kMember; }
  // Whether scratch is shared with other members of a crew.
  bool IsShared() const { return members > 1; }

  // Selects this member's panels.
  void SelectPanels(size_t member, size_t count_of_members) {
    members = count_of_members;
    first = geometry.panels() * member / members;
    last = geometry.panels() * (member + 1) / members;
  }

  // Selects the rows from `from` on that are processed together. The longest come first, so the active rows are always
  // the first slots. Returns false if there are none.
  bool SelectRows(size_t from) {
    begin = from;
    count = begin < item.rows ? HWY_MIN(item.rows_at_once, item.rows - begin) : 0;
    steps = count == 0 ? 0 : Length(0);
    return count != 0;
  }

  // Whether the last active row has ended before this step.
  bool HasEndedRow() const { return active > 0 && Length(active - 1) <= step; }

  size_t Row(size_t slot) const {
    const size_t index = item.row + (begin + slot) * item.stride;
    return item.order == nullptr ? index : static_cast<size_t>(item.order[index]);
  }
  // The row of initial_h and Y_h for a slot.
  size_t StateRow(size_t slot) const {
    const size_t row = Row(slot);
    return call.state_rows == nullptr ? row : static_cast<size_t>(call.state_rows[row]);
  }
  size_t Length(size_t slot) const {
    return call.lengths == nullptr ? call.T : static_cast<size_t>(call.lengths[Row(slot)]);
  }
  size_t TimeOf(size_t slot, size_t step) const { return reversed ? Length(slot) - 1 - step : step; }
  C* State(size_t step, size_t slot) const { return h[step & h_mask] + slot * padded; }
  // The last state of a slot at the start of `step`.
  C* LastState(size_t step, size_t slot) const { return State(HWY_MIN(step, Length(slot)), slot); }

  static void Widen(ElementType type, const char* from, size_t count, C* to) {
    const auto convert = [&](auto to_float) HWY_ATTR {
      for (size_t i = 0; i < count; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, from + 2 * i, 2);
        to[i] = static_cast<C>(to_float(bits));
      }
    };
    type == ElementType::kFloat16 ? convert([](std::uint16_t bits) { return FromFloat16Bits(bits); })
                                  : convert([](std::uint16_t bits) { return FromBFloat16Bits(bits); });
  }

  void Narrow(const C* from, size_t count, char* to) const {
    const auto convert = [&](auto to_bits) HWY_ATTR {
      for (size_t i = 0; i < count; ++i) {
        const std::uint16_t bits = to_bits(static_cast<float>(from[i]));
        std::memcpy(to + 2 * i, &bits, 2);
      }
    };
    spec.type == ElementType::kFloat16 ? convert([](float value) { return Float16Bits(value); })
                                       : convert([](float value) { return BFloat16Bits(value); });
  }

  // Converts the units of a panel to 16 bits.
  HWY_NOINLINE void StoreIn16Bits(const C* from, size_t width, char* to) const {
    width == kLanesOf<C> ? Narrow(from, kLanesOf<C>, to) : Narrow(from, width, to);
  }

  // Reads elements of the layer's type, converted to C.
  void Read(const char* from, size_t count, C* to) const {
    if (io_is_compute_type) {
      std::memcpy(to, from, count * sizeof(C));
    } else {
      Widen(spec.type, from, count, to);
    }
  }

  // Writes results, converted to the layer's type.
  void Write(const C* from, size_t count, char* to) const {
    if (io_is_compute_type) {
      std::memcpy(to, from, count * sizeof(C));
    } else {
      Narrow(from, count, to);
    }
  }

  void LoadInitialState() {
    const bool given = call.initial_h.data != nullptr;
    for (size_t slot = 0; slot < count; ++slot) {
      C* const h = State(0, slot);
      const size_t zeros = given ? spec.H : 0;
      std::memset(h + zeros, 0, (padded - zeros) * sizeof(C));
      if (!given) continue;
      const char* const from = call.initial_h.at(0, item.d, StateRow(slot));
      if (call.wide_state) {
        std::memcpy(h, from, spec.H * sizeof(C));
      } else {
        Read(from, spec.H, h);
      }
    }
  }

  // Copies the states of all rows before `step` to a buffer, and back.
  void SaveStates(size_t step, C* to) const {
    for (size_t slot = 0; slot < count; ++slot) {
      std::memcpy(to + slot * padded, LastState(step, slot), padded * sizeof(C));
    }
  }
  void LoadStates(size_t step, const C* from) {
    for (size_t slot = 0; slot < count; ++slot) {
      std::memcpy(LastState(step, slot), from + slot * padded, padded * sizeof(C));
    }
  }

  // Calls change(), which switches to other scratch, and copies the states there.
  template <class Change>
  void MoveStates(size_t step, Change&& change) {
    C* from[kStateBuffersOfEpoch];
    std::copy(std::begin(h), std::end(h), from);
    const size_t mask = h_mask;
    change();
    for (size_t slot = 0; slot < count; ++slot) {
      const size_t last = HWY_MIN(step, Length(slot));
      const C* const h = from[last & mask] + slot * padded;
      if (h != State(last, slot)) std::memcpy(State(last, slot), h, padded * sizeof(C));
    }
  }

  const WorkItem& item;
  const Call& call;
  const Spec& spec;
  const Geometry geometry;
  const size_t padded;
  const bool reversed;
  const bool io_is_compute_type;  // X, h and Y have the compute type
  const ScratchOwner owner;
  size_t members = 1;           // the threads that split the units
  size_t first = 0, last = 0;   // this member's panels
  size_t begin = 0, count = 0;  // the selected rows
  size_t steps = 0;             // of the longest row
  size_t step = 0;              // the next step
  size_t active = 0;            // the number of rows that have this step
  C* h[kStateBuffersOfEpoch];   // the buffers of states [slot][padded]; h[t & h_mask] has the states before step t
  size_t h_mask = kStateBuffers - 1;
  C* rh;  // r∘h [slot][padded], only of layers with reset before
  C* z;   // z [slot][padded], only of these layers
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
