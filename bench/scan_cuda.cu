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

// Where the rows of a scan lie: beside one another in each step, or each with its steps adjacent.
enum class Rows { adjacent, apart };
const char* name(Rows rows) { return rows == Rows::adjacent ? "TBH" : "BHT"; }

// A scan over T steps of B*H rows with its tensors: inputs are those that `T` can hold, stored as
// `As`.
template <class T, class As>
struct ScanProblem {
  Index steps, rows;
  Rows lie;
  bool log_form;
  Context context;
  thrust::device_vector<As> a, b, h, dh, da, db;

  ScanProblem(const Shape& s, Rows lie, bool log_form, cudaStream_t stream)
      : steps(s.steps),
        rows(s.rows()),
        lie(lie),
        log_form(log_form),
        context(Problem<T, As>::where(stream, MatmulPrecision::highest)),
        a(operand<T, As>(s.elements(), Fill::decay, log_form, 1)),
        b(operand<T, As>(s.elements(), Fill::value, log_form, 2)),
        h(s.elements()) {}

  ScanForm form() const { return log_form ? ScanForm::log : ScanForm::linear; }
  Plan plan(Strategy strategy, bool training = false) const {
    return linear_scan_plan(
        context, {steps, 1, rows, dtype_of<As>(), form(), training, lie == Rows::apart}, strategy);
  }
  TensorView view(thrust::device_vector<As>& data) const {
    TensorView out = TensorView::of(raw(data), dtype_of<As>(), {steps, rows}, Device::cuda());
    if (lie == Rows::apart) out.strides = {1, steps};
    return out;
  }
  void run(const Plan& plan, thrust::device_vector<char>& workspace) {
    ScanArgs args;
    args.a = view(a);
    args.b = view(b);
    args.h = view(h);
    args.form = form();
    args.workspace = {raw(workspace), workspace.size()};
    linear_scan(context, plan, args);
  }
  void train() {
    dh = numbers<T, As>(steps * rows, 1, 3);
    da.resize(steps * rows);
    db.resize(steps * rows);
  }
  void run_back(const Plan& plan, thrust::device_vector<char>& workspace) {
    ScanBackwardArgs args;
    args.a = view(a);
    args.h = view(h);
    args.dh = view(dh);
    args.da = view(da);
    args.db = view(db);
    args.form = form();
    args.workspace = {raw(workspace), workspace.size()};
    linear_scan_backward(context, plan, args);
  }
};

struct Way {
  Plan plan;
  thrust::device_vector<char> workspace;
  double error = 0;
  int turn = -1;

  explicit Way(const Plan& plan) : plan(plan), workspace(linear_scan_workspace(plan)) {}
};

// The pick first; a way that it names already is not there again.
template <class P>
std::vector<std::unique_ptr<Way>> ways(const P& problem, bool hopeless_to_walk) {
  std::vector<std::unique_ptr<Way>> out;
  const auto add = [&](const Plan& plan) {
    if (!out.empty() && way_of(plan) == way_of(out.front()->plan)) return;
    out.push_back(std::make_unique<Way>(plan));
  };
  add(problem.plan(Strategy::automatic));
  const bool apart = problem.lie == Rows::apart;
  if (!hopeless_to_walk && !apart) add(problem.plan(Strategy::fused_sequential));
  for (const bool along_lanes : {false, true}) {
    if (along_lanes ? !apart && problem.rows > dispatch::kCudaLaneRows : apart) continue;
    for (const bool across_blocks : {false, true}) {
      if (!across_blocks && hopeless_to_walk && problem.rows <= dispatch::kCudaLaneRows) continue;
      Plan plan = problem.plan(Strategy::parallel_scan);
      plan.along_lanes = along_lanes;
      plan.across_blocks = across_blocks;
      add(plan);
    }
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

// What a row and a line say of one time; `streams` tensors are read or written.
template <class T>
void report_time(const Shape& s, Rows lie, bool log_form, const char* pass, int streams,
                 const Way& way, bool picked, const Timing& time, double copy_gbps,
                 const Turns& turns, Report& report) {
  const double gbps =
      static_cast<double>(streams) * sizeof(T) * static_cast<double>(s.elements()) / time.ms / 1e6;
  const char* domain = log_form ? "log" : "linear";
  std::printf("%-8s %-6s %s B%-2d T%-9d H%-4d %-16s %-28s %8.4f ms %6.0f GB/s %5.1f %%%s\n",
              name_of<T>(), domain, name(lie), (int)s.batch, (int)s.steps, (int)s.hidden, pass,
              way_of(way.plan).c_str(), time.ms, gbps, 100 * gbps / copy_gbps,
              picked ? " (picked)" : "");
  report.add(format(
      "{\"bench\": \"scan\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", \"domain\": \"%s\", "
      "\"pass\": \"%s\", \"layout\": \"%s\", \"B\": %d, \"T\": %d, \"C\": %d, \"H\": %d, "
      "\"dtype\": \"%s\", \"ms\": %.5f, \"ms_spread\": %.5f, \"gbps\": %.1f, "
      "\"copy_gbps\": %.0f, \"copy_share\": %.4f, \"max_error\": %.3e, \"picked\": %s, %s}",
      way_of(way.plan).c_str(), domain, pass, name(lie), (int)s.batch, (int)s.steps, (int)s.hidden,
      (int)s.hidden, name_of<T>(), time.ms, time.spread, gbps, copy_gbps, gbps / copy_gbps,
      way.error, picked ? "true" : "false", turns.clocks().c_str()));
}

// Walks of so many steps one by one would take longer than all else.
template <class P>
Plan exact_plan(const P& exact, const Shape& s) {
  return exact.plan(hopeless_to_walk(s) ? Strategy::parallel_scan : Strategy::fused_sequential,
                    true);
}

template <class T>
void measure(const Shape& s, Rows lie, bool log_form, cudaStream_t stream, const Copy& copy,
             Report& report) {
  thrust::device_vector<double> want;
  {
    ScanProblem<T, double> exact(s, lie, log_form, stream);
    Way way(exact_plan(exact, s));
    exact.run(way.plan, way.workspace);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    want.swap(exact.h);
  }
  ScanProblem<T, T> p(s, lie, log_form, stream);
  auto all = ways(p, hopeless_to_walk(s));
  Turns turns(stream);
  const int copying = turns.add(1, [&](int i) { copy(i); });
  for (auto& way : all) {
    if (!check(p, want, *way)) continue;
    Way& one = *way;
    one.turn = turns.add(4, [&p, &one](int) { p.run(one.plan, one.workspace); });
  }
  turns.measure();
  for (const auto& way : all) {
    if (way->turn < 0) continue;
    report_time<T>(s, lie, log_form, "forward", 3, *way, way == all.front(), turns.time(way->turn),
                   Copy::gbps(turns.time(copying)), turns, report);
  }
}

// Forward and backward in the linear form, as they are picked: of all eight streams, da and db are
// compared with those in float64 first.
template <class T>
void measure_both(const Shape& s, Rows lie, cudaStream_t stream, const Copy& copy, Report& report) {
  thrust::device_vector<double> da, db;
  {
    ScanProblem<T, double> exact(s, lie, false, stream);
    exact.train();
    Way way(exact_plan(exact, s));
    exact.run(way.plan, way.workspace);
    exact.run_back(way.plan, way.workspace);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    da.swap(exact.da);
    db.swap(exact.db);
  }
  ScanProblem<T, T> p(s, lie, false, stream);
  p.train();
  Way way(p.plan(Strategy::automatic, true));
  p.run(way.plan, way.workspace);
  p.run_back(way.plan, way.workspace);
  CHECK_CUDA(cudaDeviceSynchronize());
  way.error = std::max(rms_error(p.da, da), rms_error(p.db, db));
  if (!(way.error <= (sizeof(T) == 2 ? 0.01 : 1e-5))) {
    std::fprintf(stderr, "FAIL backward, %s: error %g, not timed\n", way_of(way.plan).c_str(),
                 way.error);
    ++failures;
    return;
  }
  Turns turns(stream);
  const int copying = turns.add(1, [&](int i) { copy(i); });
  const int both = turns.add(2, [&](int) {
    p.run(way.plan, way.workspace);
    p.run_back(way.plan, way.workspace);
  });
  turns.measure();
  report_time<T>(s, lie, false, "forward_backward", 8, way, true, turns.time(both),
                 Copy::gbps(turns.time(copying)), turns, report);
}

// Few rows for many steps, and rows whose steps are adjacent.
constexpr Shape kFewRows[] = {{1, 1 << 20, 1}, {1, 1 << 24, 1}, {1, 1 << 28, 1}, {1, 1 << 20, 8}};
constexpr Shape kApart[] = {{8, 4096, 1536}, {1, 65536, 1024}, {1, 1 << 19, 32}};

void measure_scans(cudaStream_t stream, const Copy& copy, Report& report) {
  for (const Shape& s : kShapes) {
    for (const bool log_form : {false, true}) {
      measure<float>(s, Rows::adjacent, log_form, stream, copy, report);
      measure<__nv_bfloat16>(s, Rows::adjacent, log_form, stream, copy, report);
      measure<__half>(s, Rows::adjacent, log_form, stream, copy, report);
    }
    measure_both<float>(s, Rows::adjacent, stream, copy, report);
    measure_both<__nv_bfloat16>(s, Rows::adjacent, stream, copy, report);
  }
  for (const Shape& s : kFewRows) {
    measure<float>(s, Rows::adjacent, false, stream, copy, report);
    measure<float>(s, Rows::adjacent, true, stream, copy, report);
    measure<__nv_bfloat16>(s, Rows::adjacent, false, stream, copy, report);
  }
  for (const Shape& s : kApart) {
    for (const bool log_form : {false, true}) {
      measure<float>(s, Rows::apart, log_form, stream, copy, report);
      measure<__nv_bfloat16>(s, Rows::apart, log_form, stream, copy, report);
    }
    measure_both<float>(s, Rows::apart, stream, copy, report);
    measure_both<__nv_bfloat16>(s, Rows::apart, stream, copy, report);
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  return scanrnn::bench::bench_main(argc, argv, scanrnn::bench::measure_scans);
}
