// The Python class onegru._native.Layer; see bindings.cc.

#ifndef ONEGRU_NATIVE_LAYER_H_
#define ONEGRU_NATIVE_LAYER_H_

#include <nanobind/nanobind.h>

namespace onegru {

void BindLayer(nanobind::module_& m);

}  // namespace onegru

#endif  // ONEGRU_NATIVE_LAYER_H_
