// SPDX-License-Identifier: Apache-2.0
// The bare recurrence on the CPU: lines and rows of its tensors, and which kernels walk them.
#include <algorithm>
#include <initializer_list>

#include "cpu/linear.h"
#include "cpu/schedule.h"
#include "platform.h"
#include "recurrence/scan_walk.h"

namespace scanrnn {
namespace {

using scan::Team;

template <class T>
const CpuScanKernels<T>& scan_kernels() {
  const CpuScanTable& table = cpu_kernels().scans;
  if constexpr (std::is_same<T, Float16>::value) {
    return table.float16;
  } else if constexpr (std::is_same<T, BFloat16>::value) {
    return table.bfloat16;
  } else if constexpr (std::is_same<T, float>::value) {
    return table.float32;
  } else if constexpr (std::is_same<T, double>::value) {
    return table.float64;
  } else if constexpr (std::is_same<T, scan::Complex<float>>::value) {
    return table.complex64;
  } else {
    return table.complex128;
  }
}

// Calls use(T()) with the type of a dtype.
template <class F>
void with_type(Dtype dtype, F&& use) {
  switch (dtype) {
    case Dtype::float16:
      return use(Float16());
    case Dtype::bfloat16:
      return use(BFloat16());
    case Dtype::complex64:
      return use(scan::Complex<float>());
    case Dtype::complex128:
      return use(scan::Complex<double>());
    case Dtype::float64:
      return use(double());
    default:
      return use(float());
  }
}

bool has_adjacent_steps(std::initializer_list<const TensorView*> views) {
  return std::all_of(views.begin(), views.end(),
                     [](const TensorView* view) { return !*view || view->strides[0] == 1; });
}
bool has_adjacent_steps(const ScanArgs& a) {
  return has_adjacent_steps({&a.a, &a.b, &a.sign_b, &a.h});
}
bool has_adjacent_steps(const ScanBackwardArgs& a) {
  return has_adjacent_steps({&a.a, &a.b, &a.sign_b, &a.h, &a.dh, &a.da, &a.db});
}

// Whether a vector holds several steps of a row, for which the plan has to have foreseen memory.
template <class T, class Args>
bool walks_abreast(const dispatch::Plan& plan, const Args& args) {
  return kIsReal<T> && args.form != ScanForm::log_output && plan.problem.time_contiguous &&
         has_adjacent_steps(args) && !args.reset;
}

// Runs walk(schedule) on a team. Rows that are not adjacent are lines of their own.
template <class T, class F>
void run(const dispatch::Plan& plan, ScanForm form, bool adjacent, bool abreast, Arena& arena,
         F&& walk) {
  const dispatch::Problem& p = plan.problem;
  const bool logs = form == ScanForm::log_output, split = p.time_contiguous;
  const Scratch scratch(arena, plan, split ? p.batch * p.hidden_size : p.batch,
                        split ? 1 : p.hidden_size, sizeof(Value<T>),
                        logs ? kLogCarryFields : kCarryFields,
                        logs ? kLogTotalFields : kTotalFields);
  if (arena.counting()) return;
  constexpr Index kTensors = 3;  // at least
  const bool streams =
      p.steps * p.batch * p.hidden_size * kTensors * static_cast<Index>(sizeof(T)) >
      last_level_cache();
  const Index work = p.steps * p.batch * p.hidden_size * dispatch::kCpuWalkCost;
  run_team(team_size(plan, work), [&](const Team& team) {
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    if (p.steps == 0) schedule.chunk = 0;
    schedule.streams = streams;
    schedule.by_units = !adjacent && !abreast;
    schedule.lines = adjacent ? p.batch : p.batch * p.hidden_size;
    schedule.hidden = adjacent ? p.hidden_size : 1;
    schedule.steps = p.steps;
    walk(schedule);
  });
}

}  // namespace

void cpu_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena) {
  with_type(args.h.dtype, [&](auto type) {
    using T = decltype(type);
    const bool adjacent = has_adjacent_rows(args);
    const auto a = forward_args<T>(args, adjacent ? 0 : plan.problem.hidden_size);
    const bool abreast = walks_abreast<T>(plan, args);
    run<T>(plan, args.form, adjacent, abreast, arena,
           [&](const CpuSchedule& s) { scan_kernels<T>().forward(s, a); });
  });
}

void cpu_scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args, Arena& arena) {
  with_type(args.dh.dtype, [&](auto type) {
    using T = decltype(type);
    const bool adjacent = has_adjacent_rows(args);
    const auto a = backward_args<T>(args, adjacent ? 0 : plan.problem.hidden_size);
    const bool abreast = walks_abreast<T>(plan, args);
    run<T>(plan, ScanForm::linear, adjacent, abreast, arena,
           [&](const CpuSchedule& s) { scan_kernels<T>().backward(s, a); });
  });
}

}  // namespace scanrnn
