// Tests of native/memory_pool.h, part of check.cc.

#ifndef ONEGRU_NATIVE_TESTS_CHECK_POOL_H_
#define ONEGRU_NATIVE_TESTS_CHECK_POOL_H_

namespace onegru {

void CheckPool();

}  // namespace onegru

#endif  // ONEGRU_NATIVE_TESTS_CHECK_POOL_H_
