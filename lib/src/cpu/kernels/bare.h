// SPDX-License-Identifier: Apache-2.0
// The bare recurrence over vectors; bare.cpp has it for float and double.
#pragma once

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

namespace scanrnn::HWY_NAMESPACE {

template <class T, bool kLogForm>
void bare(const CpuSchedule& s, const ScanKernelArgs<T>& a);

}  // namespace scanrnn::HWY_NAMESPACE
