// SPDX-License-Identifier: Apache-2.0
// Whole layers on CUDA through the public API, as the planner picks and every other way: outputs
// and gradients against a float64 run first, then the time against the layer's floor, which is its
// matrix products alone and the fewest bytes of its recurrence at the bandwidth of a copy. All of
// it takes turns. What a layer takes beside its products is its recurrence, whose share of a copy's
// bandwidth a row has as rest_share.
//   layer_cuda [--json FILE] [--cell NAME] [--size PART]
#include <algorithm>
#include <memory>

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

// One way to run both passes: the planner's own, or one that is forced on its plan.
template <class T>
struct Way {
  Problem<T, T> problem;
  bool picked[2];  // of forward, of forward and backward
  Errors errors;
  int turns[2] = {-1, -1};
};

template <class T>
using Ways = std::vector<std::unique_ptr<Way<T>>>;

// The pick first; a way that it names already is not there again.
template <class T>
Ways<T> ways(const CellInfo& cell, const Shape& s, bool batch_first, cudaStream_t stream) {
  using dispatch::Strategy;
  Ways<T> out;
  const auto add = [&](Strategy strategy, bool across_blocks) {
    out.push_back(std::unique_ptr<Way<T>>(
        new Way<T>{{cell, s, batch_first, Strategy::automatic, stream}, {}, {}}));
    Way<T>& way = *out.back();
    Problem<T, T>& p = way.problem;
    const std::string pick[] = {way_of(p.inference), way_of(p.training)};
    if (strategy != Strategy::automatic) {
      p.inference = p.layer.plan(p.context, s.steps, s.batch, Mode::inference, strategy);
      p.training = p.layer.plan(p.context, s.steps, s.batch, Mode::training, strategy);
      p.inference.across_blocks = p.training.across_blocks = across_blocks;
      p.resize();
    }
    way.picked[0] = way_of(p.inference) == pick[0];
    way.picked[1] = way_of(p.training) == pick[1];
    if (out.size() > 1 && way.picked[0] && way.picked[1]) out.pop_back();
  };
  add(Strategy::automatic, false);
  if (s.batch * s.steps <= 4096) add(Strategy::direct, false);
  if (s.steps <= 16384) add(Strategy::fused_sequential, false);
  if (cell.recurrence == dispatch::Recurrence::linear) {
    add(Strategy::parallel_scan, false);
    add(Strategy::parallel_scan, true);
  }
  return out;
}

template <class T>
void report_way(const CellInfo& cell, const Shape& s, bool batch_first, bool backward,
                const Way<T>& way, double products, double copy_gbps, const Turns& turns,
                Report& report) {
  const Problem<T, T>& p = way.problem;
  const Timing time = turns.time(way.turns[backward]);
  const Index n = s.batch * s.steps * s.hidden;
  const double moved = elements(cell, backward) * static_cast<double>(n) * sizeof(T);
  const double copied = moved / copy_gbps / 1e6, floor = products + copied;
  // Products that take longer alone than within the layer leave nothing that could be judged.
  const double rest = std::max(time.ms - products, 0.0), share = rest > 0 ? copied / rest : 0;
  const std::string name = way_of(backward ? p.training : p.inference);
  const bool picked = way.picked[backward];
  std::printf(
      "%-8s B%-2d T%-6d C%-5d H%-5d %-8s %s %-21s %-3s %8.4f ms, products %.4f, floor %.4f: %.2f "
      "x, rest %.0f %% of a copy%s\n",
      cell.name.c_str(), (int)s.batch, (int)s.steps, (int)s.input(), (int)s.hidden, name_of<T>(),
      batch_first ? "BTH" : "TBH", name.c_str(), backward ? "f+b" : "f", time.ms, products, floor,
      time.ms / floor, 100 * share, picked ? " (picked)" : "");
  report.add(
      format("{\"bench\": \"layer\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": "
             "\"%s\", \"domain\": \"log\", \"pass\": \"%s\", \"layout\": \"%s\", \"B\": %d, "
             "\"T\": %d, \"C\": %d, \"H\": %d, \"dtype\": \"%s\", \"ms\": %.5f, "
             "\"ms_spread\": %.5f, \"gemm_ms\": %.5f, \"copy_gbps\": %.0f, \"floor_ms\": %.5f, "
             "\"floor_ratio\": %.3f, \"rest_ms\": %.5f, \"rest_share\": %.3f, "
             "\"peak_bytes\": %.0f, \"max_error\": %.2e, "
             "\"gradient_error\": %.2e, \"picked\": %s, %s}",
             cell.name.c_str(), name.c_str(), backward ? "forward_backward" : "forward",
             batch_first ? "BTH" : "TBH", (int)s.batch, (int)s.steps, (int)s.input(), (int)s.hidden,
             name_of<T>(), time.ms, time.spread, products, copy_gbps, floor, time.ms / floor, rest,
             share, double(p.workspace.size() + p.reserve.size()), way.errors.y,
             way.errors.gradients, picked ? "true" : "false", turns.clocks().c_str()));
}

template <class T>
void measure_all(const CellInfo& cell, const Shape& s, cudaStream_t stream, const Copy& copy,
                 Report& report) {
  Errors bounds = sizeof(T) == 4 ? Errors{1e-5, 1e-3} : Errors{0.05, 0.1};
  // Rounding takes some pre-activations to the other side of the jump.
  if (cell.variants.front() == "relu") bounds.gradients *= 5;
  Products<T> gemm(cell, s, stream);
  for (const bool batch_first : {false, true}) {
    Problem<T, double> want(cell, s, batch_first, dispatch::Strategy::fused_sequential, stream);
    want.forward(want.training);
    want.backward();
    Ways<T> all = ways<T>(cell, s, batch_first, stream);
    for (auto& way : all) {
      way->errors = checked(way->problem, want, bounds, cell.name.c_str());
    }
    for (const bool backward : {false, true}) {
      Turns turns(stream);
      const int copying = turns.add(1, [&](int i) { copy(i); });
      const int products = gemm.add(turns, 4, backward);
      for (auto& way : all) {
        Problem<T, T>& p = way->problem;
        if (!way->errors.within(bounds)) continue;
        if (way != all.front() && way->picked[backward]) continue;
        way->turns[backward] = turns.add(3, [&p, backward](int) {
          p.forward(backward ? p.training : p.inference);
          if (backward) p.backward();
        });
      }
      turns.measure();
      for (const auto& way : all) {
        if (way->turns[backward] < 0) continue;
        report_way(cell, s, batch_first, backward, *way, turns.time(products).ms,
                   Copy::gbps(turns.time(copying)), turns, report);
      }
    }
  }
}

constexpr Shape kLayers[] = {{8, 4096, 1024}, {16, 1024, 768},  {1, 65536, 1024},
                             {32, 128, 512},  {64, 1024, 1024}, {2, 16384, 512},
                             {32, 512, 384},  {128, 256, 512},  {8, 4096, 1024, 512}};

void measure_layers(cudaStream_t stream, const Copy& copy, Report& report) {
  for (const CellInfo& cell : cells()) {
    if (cell.recurrence == dispatch::Recurrence::dense) continue;  // dense_cuda.cu
    if (!only_cell.empty() && cell.name != only_cell) continue;
    for (const Shape& s : kLayers) {
      // Floors are those of layers without a projection of x.
      if (s.input() != s.hidden && (cell.highway || cell.square)) continue;
      if (wanted(s)) measure_all<__nv_bfloat16>(cell, s, stream, copy, report);
    }
    for (const Index hidden : {1024, 1536}) {
      const Shape s{8, 4096, hidden};
      if (wanted(s)) measure_all<float>(cell, s, stream, copy, report);
    }
    for (const Index batch : {1, 8, 16}) {
      if (wanted({batch, 1, 1024})) decode<__nv_bfloat16>(cell, batch, 1024, stream, report);
    }
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  return scanrnn::bench::bench_main(argc, argv, scanrnn::bench::measure_layers);
}
