// SPDX-License-Identifier: Apache-2.0
// The bare recurrence of real numbers with rows in vectors; bare.cpp has it for each dtype.
#pragma once

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

namespace scanrnn::HWY_NAMESPACE {

// T is as memory has it.
template <class T, bool kLogForm>
void bare(const CpuSchedule& s, const ScanKernelArgs<T>& a);
template <class T, bool kLogForm>
void bare_back(const CpuSchedule& s, const ScanBackwardKernelArgs<T>& a);

}  // namespace scanrnn::HWY_NAMESPACE
