// SPDX-License-Identifier: Apache-2.0
// The CPU engine on the bare recurrence h = a h + b, by Google Benchmark: every strategy, checked
// against a plain loop in double before it is timed.
//   engine_cpu [--benchmark_filter=REGEX] [--benchmark_out=FILE] ...
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "axes.h"
#include "scanrnn/scanrnn.h"

namespace scanrnn::bench {
namespace {

using Index = std::int64_t;

// One shape: decays in (0, 1) and inputs, or their logarithms; what comes out, and should.
struct Problem {
  Shape shape;
  bool log_form;
  std::vector<float> a, b, h;

  Problem(const Shape& s, bool logs) : shape(s), log_form(logs) {
    const auto count = static_cast<std::size_t>(s.elements());
    std::mt19937 random(7);
    std::uniform_real_distribution<float> unit(0.01F, 0.99F);
    std::vector<float> pool(1000003);  // a prime: no stride of a tensor meets its period
    for (float& value : pool) value = unit(random);
    for (auto* out : {&a, &b, &h}) out->resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      a[i] = pool[i % pool.size()];
      b[i] = pool[(i + 1) % pool.size()];
      if (logs) a[i] = std::log(a[i]), b[i] = std::log(b[i]);
    }
  }

  double worst_error() const {
    const Index rows = shape.rows();
    double worst = 0, largest = 0;
    for (Index row = 0; row < rows; ++row) {
      double state = 0;
      for (Index i = row; i < shape.elements(); i += rows) {
        const auto at = static_cast<std::size_t>(i);
        state = log_form ? std::exp(double{a[at]}) * state + std::exp(double{b[at]})
                         : double{a[at]} * state + double{b[at]};
        largest = std::max(largest, std::abs(state));
        const double error = std::abs(h[at] - state);
        worst = error <= worst ? worst : error == error ? error : HUGE_VAL;
      }
    }
    return worst / largest;
  }
};

void scan(benchmark::State& state, const Shape& shape, bool log_form, dispatch::Strategy strategy) {
  Problem problem(shape, log_form);
  Context context;
  const Index rows = shape.rows();
  const ScanForm form = log_form ? ScanForm::log : ScanForm::linear;
  const auto plan =
      linear_scan_plan(context, {shape.steps, 1, rows, Dtype::float32, form}, strategy);
  const Buffer workspace(context, linear_scan_workspace(plan));
  const auto view = [&](const std::vector<float>& data) {
    return TensorView::of(data.data(), Dtype::float32, {shape.steps, rows});
  };
  ScanArgs args;
  args.a = view(problem.a);
  args.b = view(problem.b);
  args.h = view(problem.h);
  args.form = form;
  args.workspace = workspace.span();
  linear_scan(context, plan, args);
  const double error = problem.worst_error();
  const double bound = 3e-7 * (1 + std::log2(static_cast<double>(shape.steps)));
  if (!(error <= bound)) {
    return state.SkipWithError(("error " + std::to_string(error)).c_str());
  }
  for (auto _ : state) linear_scan(context, plan, args);
  state.SetBytesProcessed(state.iterations() * 3 * shape.elements() * Index{sizeof(float)});
  state.counters["error"] = error;
}

void copy(benchmark::State& state) {
  const std::vector<float> from(std::size_t{1} << 27, 1.0F);
  std::vector<float> to(from.size());
  for (auto _ : state) {
#pragma omp parallel for
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[i];
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * static_cast<Index>(from.size()) *
                          Index{sizeof(float)});
}

void add_all() {
  const auto set_up = [](benchmark::internal::Benchmark* one) {
    one->UseRealTime()->Unit(benchmark::kMillisecond);
  };
  set_up(benchmark::RegisterBenchmark("copy", copy));
  for (const Shape& shape : kShapes) {
    for (const bool log_form : {false, true}) {
      for (const auto strategy : {dispatch::Strategy::direct, dispatch::Strategy::fused_sequential,
                                  dispatch::Strategy::parallel_scan}) {
        const std::string label = std::string(name(strategy)) + "/" +
                                  (log_form ? "log" : "linear") + "/B" +
                                  std::to_string(shape.batch) + "/T" + std::to_string(shape.steps) +
                                  "/H" + std::to_string(shape.hidden);
        set_up(benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
          scan(state, shape, log_form, strategy);
        }));
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  scanrnn::bench::add_all();
  try {
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
