// The gradients of a call, for training.

#ifndef ONEGRU_NATIVE_GRADIENTS_H_
#define ONEGRU_NATIVE_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/packed.h"
#include "native/problem.h"

namespace onegru {

// A call whose outputs are known, the gradients of a loss by them, and where the gradients by its inputs go. All
// numbers are of the type that is computed in. Null data are absent: inputs that were not given, gradients that are
// zero or not wanted.
struct GradientCall {
  std::size_t T;
  std::size_t B;
  Rows X;                       // [T, B] rows of I
  Rows initial_h;               // [D, B] rows of H
  const std::int64_t* lengths;  // [B]
  Rows attention;               // [T, B] single elements
  const std::uint8_t* resets;   // [T, B]: whether the state is set back before the step
  bool resets_to_initial;       // to initial_h; else to zero
  Rows Y;                       // [T, D, B] rows of H
  Rows gates;                   // as Call::gates; null: they are computed again
  Rows dY;                      // [T, D, B] rows of H
  Rows dY_h;                    // [D, B] rows of H
  GivenWeights weights[2];      // of each direction; the biases are not needed
  GateOrder order;              // of these and of the gradients by them
  Rows dX;                      // [T, B] rows of I
  struct {
    void *W, *R, *Wb, *Rb;
  } by[2];           // of the shapes of the weights
  Rows d_initial_h;  // [D, B] rows of H
  Rows d_attention;  // [T, B] single elements
};

// A chunk of steps of one direction. Rows of the batch have slots, the longest first, so the active ones of a step are
// the first slots. A step of a slot has a row n in each buffer.
struct GradientChunk {
  const Packed* packed;
  const GradientCall* call;
  std::size_t d;
  const std::int32_t* order;                           // the row of the batch in each slot
  std::size_t begin, end;                              // the steps, in the order of processing
  const std::size_t* active;                           // of each step since `begin`: how many slots have it
  const std::size_t* first;                            // and the n of its first slot
  std::size_t rows;                                    // all n
  std::size_t stride_x, stride_h, stride_s, stride_g;  // from one n to the next
  void* x;                                             // [n][I]: X
  void* h;                                             // [n][H]: the state before the step
  void* s;                                             // [n][SavedGate][H]: gates that are computed again
  void** gates;       // [n]: where its gates are; q is h·Rhᵀ + Rbh with reset after, r∘h with reset before
  void* g;            // [n][4][H]: the gradients by the arguments of n, z and r; and by q
  void* dh;           // [slot][H]: the gradient by the state
  const void* by_h;   // R for the products with the gradients, packed
  const void* by_x;   // W likewise
  const void* by_rh;  // reset before: R of n likewise
  void* dW;           // [n, z, r][H][I], sums so far
  void* dR;           // [n, z, r][H][H]
  void* dB;           // [n, z, r, q][H]
};

struct GradientKernel {
  std::size_t lanes;
  // The numbers that a gradient's matrix takes: [K, N] in panels of whole vectors.
  std::size_t (*packed_size)(std::size_t K, std::size_t N);
  // Packs gates of a matrix [3H, N], rows of H units each, in this order, padded to whole vectors.
  void (*pack)(const void* matrix, std::size_t H, std::size_t N, const std::size_t* gates, std::size_t count,
               void* packed);
  // Gates, gradients by them, by the states and by X, of some slots. scratch: scratch_size bytes.
  void (*rows)(const GradientChunk& chunk, std::size_t first_slot, std::size_t last_slot, unsigned char* scratch);
  std::size_t (*scratch_size)(const GradientChunk& chunk, std::size_t slots);
  std::size_t (*weights_scratch_size)(const GradientChunk& chunk, std::size_t rows);
  // Adds to the gradients by W, R and B, of the columns of X and h in some panels.
  void (*weights)(const GradientChunk& chunk, std::size_t first_panel, std::size_t last_panel, unsigned char* scratch);
};

// Throws Unsupported if this build has none.
const GradientKernel& GradientKernelFor(ElementType type, std::size_t target);
const GradientKernel& Float32GradientKernel(std::size_t target);
const GradientKernel& Float64GradientKernel(std::size_t target);

// Runs a call that saves its gates, rows of the batch on several threads.
void RunSaving(const std::shared_ptr<const Packed>& packed, const Call& call);

// Computes the gradients, on this thread or several; the bits do not depend on how many.
void Gradients(const Packed& packed, const GradientCall& call);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_GRADIENTS_H_
