// The rows of a work item: their addresses, inputs, outputs and states.
//
// C: the compute type.

#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "native/float_mode.h"
#include "native/kernel.h"
#include "native/kernels/arithmetic-inl.h"

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

template <class C>
struct ActiveRows {
  // own: this thread's scratch. The rest of a member's scratch belongs to its epoch.
  ActiveRows(const WorkItem& item, ScratchOwner owner, unsigned char* own)
      : item(item),
        call(*item.call),
        spec(item.packed->spec()),
        geometry(item.packed->geometry()),
        padded(geometry.padded()),
        reversed(spec.reversed[item.d]),
        io_is_compute_type(SizeOf(spec.type) == sizeof(C)),
        owner(owner),
        token(owner == ScratchOwner::kCaller ? call.token : nullptr),
        work_per_poll(WorkPerPoll()),
        work_until_poll(work_per_poll),
        own(own) {
    const ScratchPlan plan = PlanOf(owner);
    x_rows = reinterpret_cast<const C**>(own + plan.x_rows);
    h_rows = reinterpret_cast<const C**>(own + plan.h_rows);
    x_block = reinterpret_cast<C*>(own + plan.x_block);
    x_converted = own + plan.x_converted;
    h_converted = own + plan.h_converted;
    sums = reinterpret_cast<std::int32_t*>(own + plan.sums);
    if (owner == ScratchOwner::kHelper) {
      y = reinterpret_cast<char*>(own + plan.y);
      states = reinterpret_cast<C*>(own + plan.states);
    }
    UseOwnScratch(plan);
  }

  // Called before `rows` rows of a panel take a step or are projected. Returns false if the call was cancelled, and
  // that work may be skipped.
  HWY_INLINE bool PollCancel(size_t rows) {
    work_until_poll -= static_cast<std::int64_t>(rows);
    return HWY_LIKELY(work_until_poll > 0) || Poll();
  }

  // Whether PollCancel must be called between this many rows of a panel.
  HWY_INLINE bool IsLong(size_t rows) const { return static_cast<std::int64_t>(rows) > work_per_poll; }

  ScratchPlan PlanOf(ScratchOwner owner) const {
    return {owner, *item.packed, sizeof(C), item.rows_at_once, item.x_rows_at_once};
  }

  // Switches to this thread's own scratch.
  void UseOwnScratch() { UseOwnScratch(PlanOf(owner)); }
  void UseOwnScratch(const ScratchPlan& plan) {
    first = 0;
    last = geometry.panels();
    copies_inputs = owner == ScratchOwner::kHelper || !io_is_compute_type;
    shared = false;
    if (owner != ScratchOwner::kMember) UseScratch(own, plan, 2);
  }

  // Switches to the scratch of an epoch, as one of its members.
  void UseScratchOf(const Epoch& epoch, size_t member) {
    first = geometry.panels() * member / epoch.members;
    last = geometry.panels() * (member + 1) / epoch.members;
    shared = true;
    UseScratch(epoch.scratch, PlanOf(ScratchOwner::kEpoch), 4);
  }

  // Selects the rows from `from` on that are processed together. The longest come first, so the active rows are always
  // the first slots. Returns false if there are none.
  bool SelectRows(size_t from) {
    begin = from;
    count = begin < item.rows ? HWY_MIN(item.rows_at_once, item.rows - begin) : 0;
    steps = count == 0 ? 0 : Length(0);
    return count != 0;
  }

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

  bool IsStopped() const { return HWY_UNLIKELY(token != nullptr) && token->stopped(); }

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

  // Narrows the units of a panel.
  HWY_NOINLINE void NarrowPanel(const C* from, size_t width, char* to) const {
    width == kLanesOf<C> ? Narrow(from, kLanesOf<C>, to) : Narrow(from, width, to);
  }

  // Writes results, converted to the layer's type.
  void Write(const C* from, size_t count, char* to) const {
    if (io_is_compute_type) {
      std::memcpy(to, from, count * sizeof(C));
    } else {
      Narrow(from, count, to);
    }
  }

  // The first place of a chunk's rows of X in x_rows and x, which hold two chunks in turn. each: the rows of a chunk;
  // kAheadRows only if the projection is pipelined, because plans have more.
  size_t ChunkPlace(size_t chunk, size_t each) const { return shared || each == kAheadRows ? (chunk & 1) * each : 0; }

  // The first place of a chunk's attention scores. With a pipelined projection, the X of a chunk is no longer needed
  // when its steps begin, and is overwritten while other members may still read the scores.
  size_t ScorePlace(size_t chunk, size_t each) const {
    return each == kAheadRows ? (chunk & 3) * each : ChunkPlace(chunk, each);
  }

  // Finds the rows of X for a chunk of steps from `step` on, at most `most` rows. Copies or converts them and the
  // attention scores if necessary. Advances `step` to the end of the chunk, and returns the number of rows.
  // reads_inputs: false if the leader has already copied them to the epoch's scratch; then only their addresses are
  // set.
  size_t GatherInputs(size_t& step, size_t most, size_t chunk, bool reads_inputs) {
    const size_t place = ChunkPlace(chunk, most), scores = ScorePlace(chunk, most);
    size_t rows = 0, running = count;
    if (!copies_inputs && !shared && call.lengths == nullptr && item.order == nullptr && !spec.attention) {
      for (; step < steps && (rows == 0 || rows + running <= most); ++step) {
        const char* x = call.X.at(TimeOf(0, step), 0, Row(0));
        for (size_t slot = 0; slot < running; ++slot, x += call.X.row * static_cast<std::ptrdiff_t>(item.stride))
          x_rows[place + rows++] = reinterpret_cast<const C*>(x);
      }
      return rows;
    }
    for (; step < steps; ++step) {
      while (Length(running - 1) <= step) --running;
      if (rows != 0 && rows + running > most) break;
      for (size_t slot = 0; slot < running; ++slot, ++rows)
        GatherInput(step, slot, place + rows, scores + rows, reads_inputs);
    }
    return rows;
  }

  void GatherInput(size_t step, size_t slot, size_t place, size_t place_of_score, bool reads_inputs) {
    const size_t t = TimeOf(slot, step);
    C* const copy = x + place * spec.I;
    const char* const source = reads_inputs || !shared ? call.X.at(t, 0, Row(slot)) : nullptr;
    x_rows[place] = shared || copies_inputs ? copy : reinterpret_cast<const C*>(source);
    if (!reads_inputs) return;
    if (shared || copies_inputs) Read(source, spec.I, copy);
    if (spec.attention) Read(call.attention.at(t, 0, Row(slot)), 1, attention + place_of_score);
  }

  // Reads elements of the layer's type, converted to C.
  void Read(const char* from, size_t count, C* to) const {
    if (io_is_compute_type) {
      std::memcpy(to, from, count * sizeof(C));
    } else {
      Widen(spec.type, from, count, to);
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
    C* const from[] = {h[0], h[1], h[2], h[3]};
    const size_t mask = h_mask;
    change();
    for (size_t slot = 0; slot < count; ++slot) {
      const size_t last = HWY_MIN(step, Length(slot));
      const C* const h = from[last & mask] + slot * padded;
      if (h != State(last, slot)) std::memcpy(State(last, slot), h, padded * sizeof(C));
    }
  }

  // Writes the last states, and zeros after the end of each row.
  void Finish() {
    const size_t size = SizeOf(spec.type);
    for (size_t slot = 0; slot < count; ++slot) {
      const size_t length = Length(slot);
      if (call.Y_h.data != nullptr) {
        char* const to = call.Y_h.at(0, item.d, StateRow(slot));
        if (length == 0) {
          std::memset(to, 0, spec.H * (call.wide_state ? sizeof(C) : size));
        } else if (call.wide_state) {
          std::memcpy(to, State(length, slot), spec.H * sizeof(C));
        } else {
          Write(State(length, slot), spec.H, to);
        }
      }
      if (call.Y.data == nullptr) continue;
      for (size_t t = length; t < call.T && PollCancel(1); ++t) {
        std::memset(call.Y.at(t, item.d, Row(slot)), 0, spec.H * size);
      }
    }
  }

  // --- the windows of a helper (team.h); for other threads these do nothing

  bool IsLeader() const { return owner != ScratchOwner::kMember; }

  bool Open() { return owner != ScratchOwner::kHelper || item.claim->Open(); }
  void Close(bool done = false) {
    if (owner == ScratchOwner::kHelper) item.claim->Close(done);
  }

  // Commits all steps before this one. The window stays open, for the inputs of the next chunk.
  bool Commit() {
    if (owner != ScratchOwner::kHelper) return true;
    if (!Open()) return false;
    WriteY();
    if (step != 0) SaveStates(step, states);
    item.claim->Commit({begin, step, step == 0 ? nullptr : states});
    return true;
  }

  // Copies the rows of Y up to this step to the caller's array.
  void WriteY() {
    if (owner != ScratchOwner::kHelper || call.Y.data == nullptr) return;
    const size_t size = spec.H * SizeOf(spec.type);
    const char* from = y;
    size_t running = count;
    for (; committed_steps < step; ++committed_steps) {
      while (Length(running - 1) <= committed_steps) --running;
      for (size_t slot = 0; slot < running; ++slot, from += size)
        std::memcpy(call.Y.at(TimeOf(slot, committed_steps), item.d, Row(slot)), from, size);
    }
    y_step = 0;
  }

  // Finds the destinations of this step's rows of Y, if there are several. Usually they are equally spaced.
  HWY_INLINE void LocateRowsOfY() {
    in_line = item.order == nullptr && (call.lengths == nullptr || !reversed);
    if (HWY_UNLIKELY(!in_line) || call.Y.data == nullptr || owner == ScratchOwner::kMember) return;
    y_to = AddressOfY(0);
    y_pitch = owner == ScratchOwner::kHelper ? static_cast<std::ptrdiff_t>(spec.H * SizeOf(spec.type))
                                             : call.Y.row * static_cast<std::ptrdiff_t>(item.stride);
  }

  // The destination of a row of Y in this step.
  HWY_INLINE char* AddressOfY(size_t slot) const {
    if (HWY_LIKELY(owner != ScratchOwner::kHelper)) return call.Y.at(TimeOf(slot, step), item.d, Row(slot));
    return y + (y_step + slot) * spec.H * SizeOf(spec.type);
  }

  const WorkItem& item;
  const Call& call;
  const Spec& spec;
  const Geometry geometry;
  const size_t padded;
  const bool reversed;
  const bool io_is_compute_type;  // X, h and Y have the compute type
  const ScratchOwner owner;
  CancellationToken* const token;    // the call's token, on the thread that made the call
  const std::int64_t work_per_poll;  // rows of a panel between two checks of the token
  std::int64_t work_until_poll;      // until the next check
  size_t first = 0, last = 0;        // this member's panels
  bool shared = false;               // whether scratch is shared with other members
  bool copies_inputs = false;        // whether inputs are copied to scratch
  size_t begin = 0, count = 0;       // the selected rows
  size_t steps = 0;                  // of the longest row
  size_t step = 0;                   // the next step
  size_t active = 0;                 // the number of rows that have this step
  bool y_by_tile = false;            // whether tiles write to Y
  bool y_by_row = false;             // rows of Y, or parts of them, are written after each step
  size_t committed_steps = 0;        // a helper has committed its rows of Y up to this step
  size_t y_step = 0;                 // the place of this step's rows in `y`
  bool in_line = false;              // whether this step's rows of Y are equally spaced
  char* y_to = nullptr;              // the first of these rows
  std::ptrdiff_t y_pitch = 0;        // the distance between them, in bytes
  C* h[4];                           // the states [slot][padded]; before step i, h[i & h_mask]
  size_t h_mask = 1;
  C* rh;                       // r∘h [slot][padded], reset before
  C* z;                        // z [slot][padded], reset before
  C* xp;                       // x·Wᵀ and biases [row][panel][z, r, n][lanes]
  C* attention;                // of rows of X
  C* x;                        // copies of rows of X
  C* x_block;                  // rows of X for the pipelined projection [k][row]
  unsigned char* x_converted;  // converted rows of X
  unsigned char* h_converted;  // converted rows of h, or of r∘h
  std::int32_t* sums;          // sums of AMX
  const C** x_rows;
  const C** h_rows;
  char* y = nullptr;    // a helper's rows of Y
  C* states = nullptr;  // a helper's states

 private:
  // A row of a panel takes 3·lanes products with I or H elements.
  std::int64_t WorkPerPoll() const {
    if (token == nullptr) return std::numeric_limits<std::int64_t>::max();
    const size_t row = HWY_MAX(spec.I, spec.H) * 3 * kLanesOf<C>;
    return HWY_MAX(token->work() / static_cast<std::int64_t>(row), 1);
  }

  HWY_NOINLINE bool Poll() {
    amx::Release();                   // a signal handler may want the tiles
    SetFloatMode(kDefaultFloatMode);  // for the code that the token may run
    token->Ask();
    SetFloatMode(FloatModeOf(spec));  // a signal handler may have changed it
    work_until_poll = token->stopped() ? 0 : work_per_poll;
    return !token->stopped();
  }

  void UseScratch(unsigned char* base, const ScratchPlan& plan, size_t buffers) {
    h_mask = buffers - 1;
    for (size_t i = 0; i < 4; ++i) {
      h[i] = reinterpret_cast<C*>(base + plan.h) + (i & h_mask) * item.rows_at_once * padded;
    }
    rh = reinterpret_cast<C*>(base + plan.rh);
    z = reinterpret_cast<C*>(base + plan.z);
    xp = reinterpret_cast<C*>(base + plan.xp);
    attention = reinterpret_cast<C*>(base + plan.attention);
    x = reinterpret_cast<C*>(base + plan.x);
  }

  unsigned char* const own;
};

}  // namespace ONEGRU_ARITHMETIC
}  // namespace HWY_NAMESPACE
}  // namespace onegru
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
