// The kernels of this build. Only this file knows which ones it has: CMake defines ONEGRU_HAS_… as 0 or 1 for it.

#include <string>

#include "native/few_steps.h"
#include "native/gradients.h"
#include "native/kernel.h"
#include "native/targets/targets.h"

namespace onegru {
namespace {

#if defined(ONEGRU_SMALL)
constexpr const char kAdvice[] = "the build for browsers computes with float32 and int8 weights";
#else
constexpr const char kAdvice[] =
    "add them with `make kernels`, or with CMake's -DONEGRU_STORAGES=all -DONEGRU_GRADIENTS=ON";
#endif

[[noreturn]] void ThrowMissing(const char* what) {
  throw Unsupported(std::string("this build of onegru has no kernels for ") + what + "; " + kAdvice);
}

[[noreturn]] void ThrowMissingTraining() { ThrowMissing("training and PyTorch modules"); }

}  // namespace

bool HasKernels(ElementType storage) {
  constexpr bool kHas[] = {ONEGRU_HAS_FLOAT16, ONEGRU_HAS_BFLOAT16, true, ONEGRU_HAS_FLOAT64, ONEGRU_HAS_INT8};
  return kHas[static_cast<std::size_t>(storage)];
}

const Kernel& KernelFor(const Spec& spec, std::size_t target) {
  switch (spec.storage) {
    case ElementType::kFloat64:
      if constexpr (ONEGRU_HAS_FLOAT64) return Float64Kernel(target);
      ThrowMissing("float64");
    case ElementType::kFloat16:
      if constexpr (ONEGRU_HAS_FLOAT16) return Float16Kernel(target);
      ThrowMissing("float16 weights");
    case ElementType::kBFloat16:
      if constexpr (ONEGRU_HAS_BFLOAT16) {
        if (!spec.rounds_inputs) return BFloat16Kernel(target);
        MayUseAmx(target, true);  // requests AMX from the system now, because a step must not
        return RoundedBFloat16Kernel(target);
      }
      ThrowMissing("bfloat16 weights");
    case ElementType::kInt8:
      if constexpr (ONEGRU_HAS_INT8) {
#if !ONEGRU_WITHOUT_VNNI
        if (Int8ProductsOf(target) != Int8Products::kSimd) {
          return (spec.planes == 1 ? Int8VnniKernel : Int8By16VnniKernel)(target);
        }
#endif
#if ONEGRU_ONLY_VNNI
        throw Unsupported("this build's kernels for int8 weights need VNNI, which this CPU does not have");
#else
        return (spec.planes == 1 ? Int8Kernel : Int8By16Kernel)(target);
#endif
      }
      ThrowMissing("int8 weights");
    case ElementType::kFloat32:
      break;
  }
  return Float32Kernel(target);
}

const GradientKernel& GradientKernelFor(ElementType type, std::size_t target) {
  if constexpr (ONEGRU_HAS_GRADIENTS) {
    return (type == ElementType::kFloat64 ? Float64GradientKernel : Float32GradientKernel)(target);
  }
  ThrowMissingTraining();
}

const FewStepsKernel& FewStepsFor(ElementType type, std::size_t target) {
  if constexpr (ONEGRU_HAS_GRADIENTS) {
    return (type == ElementType::kFloat64 ? Float64FewSteps : Float32FewSteps)(target);
  }
  ThrowMissingTraining();
}

}  // namespace onegru
