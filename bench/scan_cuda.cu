// SPDX-License-Identifier: Apache-2.0
// The bare recurrence on CUDA through the public API, as the planner picks and every other way:
// against a float64 walk first, then the time beside a copy. Runs take turns.
//   scan_cuda [--json FILE]
#include <memory>

#include "layer_cuda.cuh"

namespace scanrnn::bench {
namespace {

using dispatch::Plan;
using dispatch::Strategy;

struct LogOf {
  __host__ __device__ float operator()(float x) const { return logf(fabsf(x)); }
};

// Numbers that T can hold, stored as As; logarithms of them in the log form.
template <class T, class As>
thrust::device_vector<As> operand(Index count, Fill fill, bool log_form, std::uint64_t seed) {
  auto unit = filled<float>(count, fill, seed);
  if (log_form) thrust::transform(unit.begin(), unit.end(), unit.begin(), LogOf());
  thrust::device_vector<T> held(count);
  thrust::transform(unit.begin(), unit.end(), held.begin(), Convert<T>());
  thrust::device_vector<As> out(count);
  thrust::transform(held.begin(), held.end(), out.begin(), Convert<As>());
  return out;
}

// A scan over [T, B*H] with its tensors: inputs are those that `T` can hold, stored as `As`.
template <class T, class As>
struct ScanProblem {
  Index steps, rows;
  bool log_form;
  Context context;
  thrust::device_vector<As> a, b, h;

  ScanProblem(const Shape& s, bool log_form, cudaStream_t stream)
      : steps(s.steps),
        rows(s.rows()),
        log_form(log_form),
        context(Problem<T, As>::where(stream, MatmulPrecision::highest)),
        a(operand<T, As>(s.elements(), Fill::decay, log_form, 1)),
        b(operand<T, As>(s.elements(), Fill::value, log_form, 2)),
        h(s.elements()) {}

  ScanForm form() const { return log_form ? ScanForm::log : ScanForm::linear; }
  Plan plan(Strategy strategy) const {
    return linear_scan_plan(context, {steps, 1, rows, dtype_of<As>(), form()}, strategy);
  }
  void run(const Plan& plan, thrust::device_vector<char>& workspace) {
    const auto view = [&](thrust::device_vector<As>& data) {
      return TensorView::of(raw(data), dtype_of<As>(), {steps, rows}, Device::cuda());
    };
    ScanArgs args;
    args.a = view(a);
    args.b = view(b);
    args.h = view(h);
    args.form = form();
    args.workspace = {raw(workspace), workspace.size()};
    linear_scan(context, plan, args);
  }
};

struct Way {
  Plan plan;
  thrust::device_vector<char> workspace;
  double error = 0;
  int turn = -1;
};

// The pick first; a way that it names already is not there again.
template <class P>
std::vector<std::unique_ptr<Way>> ways(const P& problem, bool hopeless_to_walk) {
  std::vector<std::unique_ptr<Way>> out;
  const auto add = [&](const Plan& plan) {
    if (!out.empty() && way_of(plan) == way_of(out.front()->plan)) return;
    const std::size_t bytes = linear_scan_workspace(plan);
    out.push_back(std::unique_ptr<Way>(new Way{plan, thrust::device_vector<char>(bytes), 0, -1}));
  };
  add(problem.plan(Strategy::automatic));
  if (!hopeless_to_walk) add(problem.plan(Strategy::fused_sequential));
  for (const bool across_blocks : {false, true}) {
    Plan plan = problem.plan(Strategy::parallel_scan);
    plan.across_blocks = across_blocks;
    add(plan);
  }
  return out;
}

// Whether the largest error beyond rounding, over the largest value, is within its bound.
template <class T>
bool check(ScanProblem<T, T>& p, const thrust::device_vector<double>& want, Way& way) {
  p.run(way.plan, way.workspace);
  CHECK_CUDA(cudaDeviceSynchronize());
  way.error = worst_error(p.h, want, largest(want));
  if (way.error <= tolerance<T>(p.steps)) return true;
  std::fprintf(stderr, "FAIL %s: error %g, not timed\n", way_of(way.plan).c_str(), way.error);
  ++failures;
  return false;
}

template <class T>
void measure(const Shape& s, bool log_form, cudaStream_t stream, const Copy& copy, Report& report) {
  thrust::device_vector<double> want;
  {
    ScanProblem<T, double> exact(s, log_form, stream);
    const Plan plan = exact.plan(Strategy::fused_sequential);
    thrust::device_vector<char> workspace(linear_scan_workspace(plan));
    exact.run(plan, workspace);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    want.swap(exact.h);
  }
  ScanProblem<T, T> p(s, log_form, stream);
  auto all = ways(p, hopeless_to_walk(s));
  Turns turns(stream);
  const int copying = turns.add(1, [&](int i) { copy(i); });
  for (auto& way : all) {
    if (!check(p, want, *way)) continue;
    Way& one = *way;
    one.turn = turns.add(4, [&p, &one](int) { p.run(one.plan, one.workspace); });
  }
  turns.measure();
  const double copy_gbps = Copy::gbps(turns.time(copying));
  for (const auto& way : all) {
    if (way->turn < 0) continue;
    const bool picked = way == all.front();
    const Timing time = turns.time(way->turn);
    const double gbps = 3.0 * sizeof(T) * static_cast<double>(s.elements()) / time.ms / 1e6;
    const char* domain = log_form ? "log" : "linear";
    std::printf("%-8s %-6s B%-2d T%-7d H%-4d %-21s %8.4f ms %6.0f GB/s %5.1f %%%s\n", name_of<T>(),
                domain, (int)s.batch, (int)s.steps, (int)s.hidden, way_of(way->plan).c_str(),
                time.ms, gbps, 100 * gbps / copy_gbps, picked ? " (picked)" : "");
    report.add(format(
        "{\"bench\": \"scan\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", \"domain\": \"%s\", "
        "\"pass\": \"forward\", \"layout\": \"TBH\", \"B\": %d, \"T\": %d, \"C\": %d, \"H\": %d, "
        "\"dtype\": \"%s\", \"ms\": %.5f, \"ms_spread\": %.5f, \"gbps\": %.1f, "
        "\"copy_gbps\": %.0f, \"copy_share\": %.4f, \"max_error\": %.3e, \"picked\": %s, %s}",
        way_of(way->plan).c_str(), domain, (int)s.batch, (int)s.steps, (int)s.hidden, (int)s.hidden,
        name_of<T>(), time.ms, time.spread, gbps, copy_gbps, gbps / copy_gbps, way->error,
        picked ? "true" : "false", turns.clocks().c_str()));
  }
}

void measure_scans(cudaStream_t stream, const Copy& copy, Report& report) {
  for (const Shape& s : kShapes) {
    for (const bool log_form : {false, true}) {
      measure<float>(s, log_form, stream, copy, report);
      measure<__nv_bfloat16>(s, log_form, stream, copy, report);
      measure<__half>(s, log_form, stream, copy, report);
    }
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  return scanrnn::bench::bench_main(argc, argv, scanrnn::bench::measure_scans);
}
