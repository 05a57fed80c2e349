// The gradients of a call, for training.

#ifndef ONEGRU_NATIVE_GRADIENTS_H_
#define ONEGRU_NATIVE_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/packing/packed.h"
#include "native/problem.h"

namespace onegru {

// A completed call, the gradients of the loss with respect to its outputs, and the arrays for those with respect to its
// inputs. All elements have the compute type. Null data are absent: inputs that were not passed, and gradients that are
// zero or not requested.
struct GradientCall {
  std::size_t T;
  std::size_t B;
  Rows X;                       // [T, B] rows of I
  Rows initial_h;               // [D, B] rows of H
  const std::int64_t* lengths;  // [B]
  Rows attention;               // [T, B] single elements
  const std::uint8_t* resets;   // [T, B]: whether the state is reset before the step
  bool resets_to_initial;       // to initial_h; otherwise to zero
  Rows Y;                       // [T, D, B] rows of H
  Rows gates;                   // as Call::gates; null: they are recomputed
  Rows dY;                      // [T, D, B] rows of H
  Rows dY_h;                    // [D, B] rows of H
  GivenWeights weights[2];      // of each direction; biases are not used
  GateOrder order;              // of the weights and their gradients
  Rows dX;                      // [T, B] rows of I
  struct {
    void *W, *R, *Wb, *Rb;
  } d_weights[2];    // the gradients of each direction, in the shapes of the weights
  Rows d_initial_h;  // [D, B] rows of H
  Rows d_attention;  // [T, B] single elements
};

// The order of the gradients with respect to the arguments of n, z and r, and to q = h·Rhᵀ + Rbh (with reset after).
// Products with W take n, z, r, and products with R take z, r and, with reset after, q: each is contiguous.
enum GradientGate : std::size_t { kGradientN, kGradientZ, kGradientR, kGradientQ, kGradientGates };

// A chunk of steps of one direction. Each row of the batch has a slot, longest rows first, so the active rows of a step
// are in the first slots. Each pair of a step and a slot has an entry in every buffer.
struct GradientChunk {
  const Packed* packed;
  const GradientCall* call;
  std::size_t d;
  const std::int32_t* order;                           // the row of the batch in each slot
  std::size_t begin, end;                              // the steps, in the order of processing
  const std::size_t* active;                           // for each step from `begin` on: the number of active slots
  const std::size_t* first;                            // for each of these steps: the first entry
  std::size_t rows;                                    // the number of entries
  std::size_t stride_x, stride_h, stride_s, stride_g;  // elements from one entry to the next
  void* x;                                             // [entry][I]: X
  void* h;                                             // [entry][H]: the state before the step
  void* s;                                             // [entry][SavedGate][H]: the recomputed gates
  void** gates;           // [entry]: the gates of the entry; q is h·Rhᵀ + Rbh with reset after, r∘h with reset before
  void* g;                // [entry][GradientGate][H]
  void* dh;               // [slot][H]: the gradient with respect to the state
  const void* packed_R;   // z, r and, with reset after, n of R, packed for products with the gradients
  const void* packed_W;   // n, z and r of W, packed in the same way
  const void* packed_Rh;  // with reset before: n of R
  void* dW;               // [n, z, r][H][I]: the sums so far
  void* dR;               // [z, r, n][H][H]
  void* dB;               // [GradientGate][H]
};

struct GradientKernel {
  std::size_t lanes;
  // Returns the bytes of a packed matrix [K, N], in panels of full vectors.
  std::size_t (*packed_size)(std::size_t K, std::size_t N);
  // Packs the given gates of a matrix [3H, N], in this order. Each gate has H rows, padded to full vectors.
  void (*pack)(const void* matrix, std::size_t H, std::size_t N, const std::size_t* gates, std::size_t count,
               void* packed);
  // Computes some slots' gates and gradients with respect to gates, states and X. scratch: scratch_size bytes.
  void (*rows)(const GradientChunk& chunk, std::size_t first_slot, std::size_t last_slot, unsigned char* scratch);
  std::size_t (*scratch_size)(const GradientChunk& chunk, std::size_t slots);
  std::size_t (*weights_scratch_size)(const GradientChunk& chunk, std::size_t rows);
  // Accumulates the gradients with respect to W, R and B, for the columns of X and h in some strips of three vectors.
  void (*weights)(const GradientChunk& chunk, std::size_t first_strip, std::size_t last_strip, unsigned char* scratch);
};

// Returns the kernel for a type. Throws Unsupported if this build has none.
const GradientKernel& GradientKernelFor(ElementType type, std::size_t target);
const GradientKernel& Float32GradientKernel(std::size_t target);
const GradientKernel& Float64GradientKernel(std::size_t target);

// Runs a call that saves its gates. Threads share the directions and the rows of the batch.
void RunSaving(const std::shared_ptr<const Packed>& packed, const Call& call);

// Computes the gradients. The results are bitwise identical for any number of threads.
void Gradients(const Packed& packed, const GradientCall& call);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_GRADIENTS_H_
