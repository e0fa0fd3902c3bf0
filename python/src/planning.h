// SPDX-License-Identifier: Apache-2.0
// The part of scanrnn._core that measures and tunes.
#pragma once

#include <pybind11/pybind11.h>

namespace scanrnn {

void bind_planning(pybind11::module_& m);

}  // namespace scanrnn
