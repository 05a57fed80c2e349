// Heuristics of the thread pool. ONEGRU_WITHOUT names the one that is switched off, and benchmarks/heuristics.py
// measures calls without it.

#ifndef ONEGRU_NATIVE_THREADS_HEURISTICS_H_
#define ONEGRU_NATIVE_THREADS_HEURISTICS_H_

namespace onegru {

enum class Heuristic {
  kNone,               // all heuristics are on
  kYields,             // an idle worker yields before it sleeps
  kWakeHistory,        // small calls wake workers only if calls follow each other closely
  kWait,               // long calls wait for workers that they have woken
  kMissedInvitations,  // callers do not wait for workers that missed invitations
  kCpuExclusion,       // a worker does not wake up on the caller's CPU
};

#if !defined(ONEGRU_WITHOUT)
#define ONEGRU_WITHOUT kNone
#endif
constexpr bool Uses(Heuristic heuristic) { return heuristic != Heuristic::ONEGRU_WITHOUT; }

}  // namespace onegru

#endif  // ONEGRU_NATIVE_THREADS_HEURISTICS_H_
