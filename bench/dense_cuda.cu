// SPDX-License-Identifier: Apache-2.0
// LSTM and GRU on CUDA through the public API: one step beside its products alone; of a sequence
// each strategy against a float64 run of the step loop first, then its time, also for each step,
// beside that of the products with the input alone.
//   dense_cuda [--json FILE]
#include "layer_cuda.cuh"

namespace scanrnn::bench {
namespace {

using dispatch::Strategy;

template <class T>
void measure(const CellInfo& cell, const Shape& s, Strategy strategy, MatmulPrecision precision,
             const Problem<T, double>& want, const double (&products)[2], cudaStream_t stream,
             Report& report) {
  // A float32 backward may not fit where the forward pass does, and then walks step by step.
  const bool either = sizeof(T) == 4 && strategy == Strategy::persistent;
  Problem<T, T> p(cell, s, false, either ? Strategy::automatic : strategy, stream, precision);
  if (p.inference.strategy != strategy) return;
  const bool picked =
      p.layer.plan(p.context, s.steps, s.batch, Mode::training).strategy == strategy;
  p.forward(p.training);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  const double error = worst_error(p.y, want.y, largest(want.y));
  if (!(error < (sizeof(T) == 4 ? 5e-3 : 0.05))) {
    std::fprintf(stderr, "%s %s: error %g, not timed\n", cell.name.c_str(),
                 dispatch::name(strategy), error);
    std::exit(1);
  }
  p.backward();
  p.forward(p.inference);  // all products have chosen their algorithms, which a capture may not
  const char* math =
      sizeof(T) == 4 && precision != MatmulPrecision::highest ? "tf32" : name_of<T>();
  const bool mixed = strategy == Strategy::persistent && p.training.persistent_vjp.tile < 0;
  const std::string how = dispatch::name(strategy);
  for (const bool backward : {false, true}) {
    const auto time = time_calls(stream, 3, [&](int) {
      p.forward(backward ? p.training : p.inference);
      if (backward) p.backward();
    });
    const std::string label = how + (mixed && backward ? ", backward step_loop" : "");
    std::printf(
        "%-5s B%-2d T%-5d H%-5d %-8s %-32s %-3s %8.4f ms, %7.3f us a step, products %.4f%s\n",
        cell.name.c_str(), (int)s.batch, (int)s.steps, (int)s.hidden, math, label.c_str(),
        backward ? "f+b" : "f", time.ms, 1e3 * time.ms / s.steps, products[backward],
        picked ? " (picked)" : "");
    report.add(format(
        "{\"bench\": \"layer\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", "
        "\"pass\": \"%s\", \"layout\": \"TBH\", \"B\": %d, \"T\": %d, \"C\": %d, \"H\": %d, "
        "\"dtype\": \"%s\", \"math\": \"%s\", \"ms\": %.5f, \"ms_spread\": %.5f, "
        "\"us_per_step\": %.4f, \"gemm_ms\": %.5f, \"peak_bytes\": %.0f, \"max_error\": %.2e, "
        "\"picked\": %s}",
        cell.name.c_str(), label.c_str(), backward ? "forward_backward" : "forward", (int)s.batch,
        (int)s.steps, (int)s.hidden, (int)s.hidden, name_of<T>(), math, time.ms, time.spread,
        1e3 * time.ms / s.steps, products[backward], double(p.workspace.size() + p.reserve.size()),
        error, picked ? "true" : "false"));
  }
}

template <class T>
void measure_all(const CellInfo& cell, const Shape& s, cudaStream_t stream, Report& report) {
  Problem<T, double> want(cell, s, false, Strategy::step_loop, stream);
  want.forward(want.inference);
  for (const MatmulPrecision precision : {MatmulPrecision::highest, MatmulPrecision::high}) {
    if (sizeof(T) != 4 && precision == MatmulPrecision::high) continue;  // of float32 alone
    const double products[2] = {products_ms<T>(cell, s, false, stream, precision),
                                products_ms<T>(cell, s, true, stream, precision)};
    measure<T>(cell, s, Strategy::persistent, precision, want, products, stream, report);
    if (s.steps > 1024) continue;  // the step loop's time for each step does not depend on T
    measure<T>(cell, s, Strategy::step_loop, precision, want, products, stream, report);
  }
}

void measure_layers(cudaStream_t stream, Report& report) {
  for (const CellInfo& cell : cells()) {
    if (cell.recurrence != dispatch::Recurrence::dense) continue;
    for (const Index batch : {1, 8}) {
      decode<__nv_bfloat16>(cell, batch, 1024, stream, report);
      decode<float>(cell, batch, 1024, stream, report);
    }
    for (const Shape& s : {Shape{16, 1024, 768}, Shape{8, 4096, 1024}, Shape{64, 1024, 1024},
                           Shape{16, 1024, 128}, Shape{32, 128, 512}}) {
      measure_all<__nv_bfloat16>(cell, s, stream, report);
      measure_all<__half>(cell, s, stream, report);
      measure_all<float>(cell, s, stream, report);
    }
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  return scanrnn::bench::bench_main(argc, argv, scanrnn::bench::measure_layers);
}
