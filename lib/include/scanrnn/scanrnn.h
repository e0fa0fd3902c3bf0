// SPDX-License-Identifier: Apache-2.0
// The one include of a C++ user. Plain C++17: no CUDA header, no third-party header.
#pragma once

#include "scanrnn/context.h"
#include "scanrnn/counted_plan.h"
#include "scanrnn/error.h"
#include "scanrnn/layer.h"
#include "scanrnn/linear_scan.h"
#include "scanrnn/memory.h"
#include "scanrnn/registry.h"
#include "scanrnn/tensor.h"
#include "scanrnn/timed_graph.h"
