// SPDX-License-Identifier: Apache-2.0
// The bare recurrence on CUDA through the public API, as the planner picks and every other way, and
// cub::DeviceScan where it can do it: against a float64 walk first, then the time beside a copy.
// Runs take turns.
//   scan_cuda [--json FILE]
#include <memory>

#include "layer_cuda.cuh"
#include "scan_peers.cuh"

namespace scanrnn::bench {
namespace {

using dispatch::Plan;
using dispatch::Strategy;

struct LogOf {
  __host__ __device__ float operator()(float x) const { return logf(fabsf(x)); }
};
struct PartOf {
  __host__ __device__ float operator()(float x) const { return 0.7f * x; }
};

// Real numbers are one value each, complex ones two, whose parts lie beside one another.
enum class Numbers { real = 1, complex = 2 };

// Numbers that T can hold, stored as As; logarithms of them in the log form. Complex ones are as
// large as the real ones at most.
template <class T, class As, Numbers kNumbers>
thrust::device_vector<As> operand(Index numbers, Fill fill, bool log_form, std::uint64_t seed) {
  const Index count = numbers * static_cast<Index>(kNumbers);
  auto unit = filled<float>(count, fill, seed);
  if (log_form) thrust::transform(unit.begin(), unit.end(), unit.begin(), LogOf());
  if (kNumbers == Numbers::complex) {
    thrust::transform(unit.begin(), unit.end(), unit.begin(), PartOf());
  }
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
// `As`, or of complex numbers their parts.
template <class T, class As, Numbers kNumbers = Numbers::real>
struct ScanProblem {
  static constexpr Dtype kDtype = kNumbers == Numbers::real    ? dtype_of<As>()
                                  : std::is_same_v<As, double> ? Dtype::complex128
                                                               : Dtype::complex64;
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
        a(operand<T, As, kNumbers>(s.elements(), Fill::decay, log_form, 1)),
        b(operand<T, As, kNumbers>(s.elements(), Fill::value, log_form, 2)),
        h(a.size()) {}

  ScanForm form() const { return log_form ? ScanForm::log : ScanForm::linear; }
  Plan plan(Strategy strategy, bool training = false) const {
    return linear_scan_plan(context, {steps, 1, rows, kDtype, form(), training, lie == Rows::apart},
                            strategy);
  }
  TensorView view(thrust::device_vector<As>& data) const {
    TensorView out = TensorView::of(raw(data), kDtype, {steps, rows}, Device::cuda());
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
    dh = numbers<T, As>(h.size(), 1, 3);
    da.resize(h.size());
    db.resize(h.size());
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
      if (across_blocks && problem.steps <= (apart ? 256 : 8)) continue;  // hopeless, too
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
template <class T, Numbers kNumbers>
bool check(ScanProblem<T, T, kNumbers>& p, const thrust::device_vector<double>& want, Way& way) {
  p.run(way.plan, way.workspace);
  CHECK_CUDA(cudaDeviceSynchronize());
  way.error = worst_error(p.h, want, largest(want));
  if (way.error <= tolerance<T>(p.steps)) return true;
  std::fprintf(stderr, "FAIL %s: error %g, not timed\n", way_of(way.plan).c_str(), way.error);
  ++failures;
  return false;
}

// What a row and a line say of one time; `streams` tensors are read or written.
template <class T, Numbers kNumbers = Numbers::real>
void report_time(const Shape& s, Rows lie, bool log_form, const char* pass, int streams,
                 const Way& way, bool picked, const Timing& time, double copy_gbps,
                 const Turns& turns, Report& report) {
  const auto bytes = static_cast<double>(sizeof(T) * static_cast<std::size_t>(kNumbers));
  const double gbps = streams * bytes * static_cast<double>(s.elements()) / time.ms / 1e6;
  const char* domain = log_form ? "log" : "linear";
  const char* dtype = kNumbers == Numbers::real ? name_of<T>() : "complex64";
  std::printf("%-8s %-6s %s B%-2d T%-9d H%-4d %-16s %-28s %8.4f ms %6.0f GB/s %5.1f %%%s\n", dtype,
              domain, name(lie), (int)s.batch, (int)s.steps, (int)s.hidden, pass,
              way_of(way.plan).c_str(), time.ms, gbps, 100 * gbps / copy_gbps,
              picked ? " (picked)" : "");
  report.add(format(
      "{\"bench\": \"scan\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", \"domain\": \"%s\", "
      "\"pass\": \"%s\", \"layout\": \"%s\", \"B\": %d, \"T\": %d, \"C\": %d, \"H\": %d, "
      "\"dtype\": \"%s\", \"ms\": %.5f, \"ms_spread\": %.5f, \"gbps\": %.1f, "
      "\"copy_gbps\": %.0f, \"copy_share\": %.4f, \"max_error\": %.3e, \"picked\": %s, %s}",
      way_of(way.plan).c_str(), domain, pass, name(lie), (int)s.batch, (int)s.steps, (int)s.hidden,
      (int)s.hidden, dtype, time.ms, time.spread, gbps, copy_gbps, gbps / copy_gbps, way.error,
      picked ? "true" : "false", turns.clocks().c_str()));
}

// Walks of so many steps one by one would take longer than all else.
template <class P>
Plan exact_plan(const P& exact, const Shape& s) {
  return exact.plan(hopeless_to_walk(s) ? Strategy::parallel_scan : Strategy::fused_sequential,
                    true);
}

// cub::DeviceScan of the problem's operands, where it can do it and finds the same.
std::unique_ptr<CubScan> peer(ScanProblem<float, float>& p,
                              const thrust::device_vector<double>& want) {
  if (p.log_form || (p.lie == Rows::adjacent && p.rows > 1)) return {};
  auto out = std::make_unique<CubScan>(raw(p.a), raw(p.b), raw(p.h), p.steps, p.rows,
                                       static_cast<cudaStream_t>(p.context.options().stream));
  (*out)();
  CHECK_CUDA(cudaDeviceSynchronize());
  const double error = worst_error(p.h, want, largest(want));
  if (error <= tolerance<float>(p.steps)) return out;
  std::fprintf(stderr, "%s: error %g, not timed\n", out->name(), error);
  return {};
}

void report_peer(const char* impl, const Shape& s, Rows lie, const Timing& time, double copy_gbps,
                 const Turns& turns, Report& report) {
  const double gbps = 12.0 * static_cast<double>(s.elements()) / time.ms / 1e6;
  std::printf("%-36s %s B%-2d T%-9d H%-4d %8.4f ms %6.0f GB/s %5.1f %%\n", impl, name(lie),
              (int)s.batch, (int)s.steps, (int)s.hidden, time.ms, gbps, 100 * gbps / copy_gbps);
  report.add(format(
      "{\"bench\": \"scan\", \"impl\": \"%s\", \"domain\": \"linear\", \"pass\": \"forward\", "
      "\"layout\": \"%s\", \"B\": %d, \"T\": %d, \"C\": %d, \"H\": %d, \"dtype\": \"float32\", "
      "\"ms\": %.5f, \"ms_spread\": %.5f, \"gbps\": %.1f, \"copy_gbps\": %.0f, "
      "\"copy_share\": %.4f, %s}",
      impl, name(lie), (int)s.batch, (int)s.steps, (int)s.hidden, (int)s.hidden, time.ms,
      time.spread, gbps, copy_gbps, gbps / copy_gbps, turns.clocks().c_str()));
}

template <class T, Numbers kNumbers = Numbers::real>
void measure(const Shape& s, Rows lie, bool log_form, cudaStream_t stream, const Copy& copy,
             Report& report) {
  thrust::device_vector<double> want;
  {
    ScanProblem<T, double, kNumbers> exact(s, lie, log_form, stream);
    Way way(exact_plan(exact, s));
    exact.run(way.plan, way.workspace);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    want.swap(exact.h);
  }
  ScanProblem<T, T, kNumbers> p(s, lie, log_form, stream);
  auto all = ways(p, hopeless_to_walk(s));
  Turns turns(stream);
  const int copying = turns.add(1, [&](int i) { copy(i); });
  for (auto& way : all) {
    if (!check(p, want, *way)) continue;
    Way& one = *way;
    one.turn = turns.add(4, [&p, &one](int) { p.run(one.plan, one.workspace); });
  }
  std::unique_ptr<CubScan> cub;
  if constexpr (std::is_same_v<T, float> && kNumbers == Numbers::real) cub = peer(p, want);
  const int of_cub = cub ? turns.add(4, [&cub](int) { (*cub)(); }) : -1;
  turns.measure();
  const double copy_gbps = Copy::gbps(turns.time(copying));
  for (const auto& way : all) {
    if (way->turn < 0) continue;
    report_time<T, kNumbers>(s, lie, log_form, "forward", 3, *way, way == all.front(),
                             turns.time(way->turn), copy_gbps, turns, report);
  }
  if (cub) report_peer(cub->name(), s, lie, turns.time(of_cub), copy_gbps, turns, report);
}

// Forward and backward in the linear form, as they are picked: of all eight streams, da and db are
// compared with those in float64 first.
template <class T, Numbers kNumbers = Numbers::real>
void measure_both(const Shape& s, Rows lie, cudaStream_t stream, const Copy& copy, Report& report) {
  thrust::device_vector<double> da, db;
  {
    ScanProblem<T, double, kNumbers> exact(s, lie, false, stream);
    exact.train();
    Way way(exact_plan(exact, s));
    exact.run(way.plan, way.workspace);
    exact.run_back(way.plan, way.workspace);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    da.swap(exact.da);
    db.swap(exact.db);
  }
  ScanProblem<T, T, kNumbers> p(s, lie, false, stream);
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
  report_time<T, kNumbers>(s, lie, false, "forward_backward", 8, way, true, turns.time(both),
                           Copy::gbps(turns.time(copying)), turns, report);
}

// Many rows for few steps, few rows for many, rows that begin anywhere, and rows whose steps are
// adjacent.
constexpr Shape kFewSteps[] = {{1, 1, 1 << 26}, {1, 4, 1 << 24}, {1, 8, 1 << 23}};
// Rows that begin with vectors, but in 16 bits inside sectors of memory; and rows that begin inside
// words, in float32 with words that begin no vector.
constexpr Shape kOdd[] = {{8, 4096, 1535}, {1, 4096, 12281}};
constexpr Shape kFewRows[] = {{1, 1 << 20, 1}, {1, 1 << 24, 1}, {1, 1 << 28, 1}, {1, 1 << 20, 8}};
constexpr Shape kApart[] = {{8, 4096, 1536},  {1, 65536, 1024},  {1, 1 << 19, 32},
                            {1, 1, 1 << 26},  {1, 4, 1 << 24},   {1, 16, 1 << 22},
                            {1, 64, 1 << 20}, {1, 100, 1 << 19}, {1, 256, 1 << 18}};

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
  const auto measure_adjacent = [&](const Shape& s) {
    measure<float>(s, Rows::adjacent, false, stream, copy, report);
    measure<__nv_bfloat16>(s, Rows::adjacent, false, stream, copy, report);
    measure_both<float>(s, Rows::adjacent, stream, copy, report);
    measure_both<__nv_bfloat16>(s, Rows::adjacent, stream, copy, report);
  };
  for (const Shape& s : kOdd) measure_adjacent(s);
  for (const Shape& s : kFewSteps) measure_adjacent(s);
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
  for (const Rows lie : {Rows::adjacent, Rows::apart}) {
    measure<float, Numbers::complex>(kApart[0], lie, false, stream, copy, report);
    measure_both<float, Numbers::complex>(kApart[0], lie, stream, copy, report);
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  return scanrnn::bench::bench_main(argc, argv, scanrnn::bench::measure_scans);
}
