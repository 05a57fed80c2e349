// Sessions of ONNX Runtime as Python looks at them.

#ifndef ONEGRU_NATIVE_OBSERVER_H_
#define ONEGRU_NATIVE_OBSERVER_H_

#include <nanobind/nanobind.h>

namespace onegru {

void BindObserver(nanobind::module_& m);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_OBSERVER_H_
