// A fuzzer for libFuzzer: ONEGRU_FUZZ is the function of fuzz.h that it runs.

#include "native/tests/fuzz.h"

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                                                             std::size_t size) {
  onegru::ONEGRU_FUZZ(data, size);
  return 0;
}
