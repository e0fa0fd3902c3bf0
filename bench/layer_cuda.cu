// SPDX-License-Identifier: Apache-2.0
// Whole layers on CUDA through the public API: each against a float64 run of another strategy
// first, then against its floor, which is its matrix products alone and the fewest bytes of its
// recurrence at the bandwidth of a copy, all measured in the same run.
//   layer_cuda [--json FILE]
#include "layer_cuda.cuh"

namespace scanrnn::bench {
namespace {

// The fewest elements of B*T*H that a recurrence moves, given its pre-activations.
double elements(const CellInfo& cell, bool backward) {
  const double gates = cell.gates, skip = cell.highway;
  const double forward = gates + 1 + skip;
  if (!backward) return forward;
  return forward + skip + (gates + 1 + 1 + 2 * skip) + gates + skip;
}

// The kernels that a plan can name, forced by the plan itself.
struct Choice {
  const char* name;
  dispatch::Strategy strategy;
  bool across_blocks;
};
constexpr Choice kChoices[] = {
    {"fused_sequential", dispatch::Strategy::fused_sequential, false},
    {"parallel_scan, block", dispatch::Strategy::parallel_scan, false},
    {"parallel_scan, device", dispatch::Strategy::parallel_scan, true},
};

template <class T>
void measure(const CellInfo& cell, const Shape& s, bool batch_first, const Choice& choice,
             const Problem<T, double>& want, const double (&products)[2], cudaStream_t stream,
             Report& report) {
  Problem<T, T> p(cell, s, batch_first, dispatch::Strategy::automatic, stream);
  const dispatch::Plan pick = p.training;
  for (dispatch::Plan* plan : {&p.inference, &p.training}) {
    plan->strategy = choice.strategy;
    plan->across_blocks = choice.across_blocks;
  }
  p.resize();
  const bool picked =
      pick.strategy == choice.strategy && pick.across_blocks == choice.across_blocks;
  p.forward(p.inference);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  const double error = worst_error(p.y, want.y, largest(want.y));
  if (!(error < (sizeof(T) == 4 ? 1e-5 : 0.05))) {
    std::fprintf(stderr, "%s: error %g, not timed\n", cell.name.c_str(), error);
    std::exit(1);
  }
  p.forward(p.training);
  p.backward();  // chooses the products' algorithms, which a capture may not
  const Index n = s.batch * s.steps * s.hidden;
  for (const bool backward : {false, true}) {
    const auto time = time_calls(stream, 3, [&](int) {
      p.forward(backward ? p.training : p.inference);
      if (backward) p.backward();
    });
    const double moved = elements(cell, backward) * n * sizeof(T);
    const double floor = products[backward] + moved / report.copy() / 1e6;
    std::printf(
        "%-8s B%-2d T%-6d H%-5d %-8s %s %-21s %-3s %8.4f ms, products %.4f, floor %.4f: "
        "%.2f x%s\n",
        cell.name.c_str(), (int)s.batch, (int)s.steps, (int)s.hidden, name_of<T>(),
        batch_first ? "BTH" : "TBH", choice.name, backward ? "f+b" : "f", time.ms,
        products[backward], floor, time.ms / floor, picked ? " (picked)" : "");
    report.add(format(
        "{\"bench\": \"layer\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", "
        "\"domain\": \"log\", \"pass\": \"%s\", \"layout\": \"%s\", \"B\": %d, \"T\": %d, "
        "\"C\": %d, \"H\": %d, \"dtype\": \"%s\", \"ms\": %.5f, \"ms_spread\": %.5f, "
        "\"gemm_ms\": %.5f, \"floor_ms\": %.5f, \"floor_ratio\": %.3f, \"peak_bytes\": %.0f, "
        "\"max_error\": %.2e, \"picked\": %s}",
        cell.name.c_str(), choice.name, backward ? "forward_backward" : "forward",
        batch_first ? "BTH" : "TBH", (int)s.batch, (int)s.steps, (int)s.hidden, (int)s.hidden,
        name_of<T>(), time.ms, time.spread, products[backward], floor, time.ms / floor,
        double(p.workspace.size() + p.reserve.size()), error, picked ? "true" : "false"));
  }
}

template <class T>
void measure_all(const CellInfo& cell, const Shape& s, cudaStream_t stream, Report& report) {
  const double products[2] = {products_ms<T>(cell, s, false, stream),
                              products_ms<T>(cell, s, true, stream)};
  for (const bool batch_first : {false, true}) {
    Problem<T, double> want(cell, s, batch_first, dispatch::Strategy::fused_sequential, stream);
    want.forward(want.inference);
    for (const Choice& choice : kChoices) {
      if (s.steps > 16384 && choice.strategy == dispatch::Strategy::fused_sequential) continue;
      measure<T>(cell, s, batch_first, choice, want, products, stream, report);
    }
  }
}

void measure_layers(cudaStream_t stream, Report& report) {
  for (const CellInfo& cell : cells()) {
    if (cell.recurrence != dispatch::Recurrence::linear) continue;  // dense_cuda.cu
    for (const Shape& s : {Shape{8, 4096, 1024}, Shape{16, 1024, 768}, Shape{1, 65536, 1024},
                           Shape{32, 128, 512}, Shape{64, 1024, 1024}}) {
      measure_all<__nv_bfloat16>(cell, s, stream, report);
    }
    measure_all<float>(cell, {8, 4096, 1024}, stream, report);
    decode<__nv_bfloat16>(cell, 1, 1024, stream, report);
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  return scanrnn::bench::bench_main(argc, argv, scanrnn::bench::measure_layers);
}
