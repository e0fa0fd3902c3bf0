// SPDX-License-Identifier: Apache-2.0
// LSTM and GRU on CUDA through the public API: one step beside its products alone; a sequence as
// the planner picks and by the other strategy, outputs and gradients against a float64 run first,
// then the time, also for each step, beside that of the products with the input. Runs take turns.
// A step of four layers in one launch, and one by one.
// And layers with heads, beside the same without, whose R is as large as that of all heads spread.
//   dense_cuda [--json FILE] [--cell NAME]
#include <memory>
#include <string>
#include <vector>

#include "layer_cuda.cuh"
#include "scanrnn/dispatch/stack_step.h"

namespace scanrnn::bench {
namespace {

using dispatch::Strategy;

// The planner's own way, or a forced one.
template <class T>
struct Way {
  std::unique_ptr<Problem<T, T>> problem;
  Errors errors;
  int turns[2] = {-1, -1};

  const dispatch::Plan& plan(bool backward) const {
    return backward ? problem->training : problem->inference;
  }
};

// The pick, and the others that this size allows. A step of the step loop takes as long in a short
// sequence, so long ones do without.
template <class T>
std::vector<Way<T>> ways(const CellInfo& cell, const Shape& s, MatmulPrecision precision,
                         cudaStream_t stream) {
  std::vector<Way<T>> out;
  for (const Strategy strategy : {Strategy::automatic, Strategy::persistent, Strategy::step_loop}) {
    if (strategy == Strategy::step_loop && s.steps > 1024) continue;
    try {
      out.push_back(
          {std::make_unique<Problem<T, T>>(cell, s, false, strategy, stream, precision), {}});
    } catch (const std::exception&) {
      // R does not fit where that strategy keeps it.
    }
  }
  return out;
}

template <class T>
void report_way(const CellInfo& cell, const Shape& s, const char* math, bool backward, bool picked,
                const Way<T>& way, double products, const Turns& turns, Report& report) {
  const Timing time = turns.time(way.turns[backward]);
  const dispatch::Plan& plan = way.plan(backward);
  // A float32 backward may not fit where the forward pass does, and then walks step by step.
  const bool mixed =
      backward && plan.strategy == Strategy::persistent && plan.persistent_vjp.tile < 0;
  const std::string name = way_of(plan) + (mixed ? ", backward step_loop" : "");
  std::printf("%-5s B%-2d T%-5d H%-5d %-8s %-32s %-3s %8.4f ms, %7.3f us a step, products %.4f%s\n",
              cell.name.c_str(), (int)s.batch, (int)s.steps, (int)s.hidden, math, name.c_str(),
              backward ? "f+b" : "f", time.ms, 1e3 * time.ms / static_cast<double>(s.steps),
              products, picked ? " (picked)" : "");
  report.add(
      format("{\"bench\": \"layer\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": "
             "\"%s\", \"pass\": \"%s\", \"layout\": \"TBH\", \"B\": %d, \"T\": %d, \"C\": %d, "
             "\"H\": %d, \"dtype\": \"%s\", \"math\": \"%s\", \"ms\": %.5f, "
             "\"ms_spread\": %.5f, \"us_per_step\": %.4f, \"gemm_ms\": %.5f, \"peak_bytes\": %.0f, "
             "\"max_error\": %.2e, \"gradient_error\": %.2e, \"picked\": %s, %s}",
             cell.name.c_str(), name.c_str(), backward ? "forward_backward" : "forward",
             (int)s.batch, (int)s.steps, (int)s.hidden, (int)s.hidden, name_of<T>(), math, time.ms,
             time.spread, 1e3 * time.ms / static_cast<double>(s.steps), products,
             double(way.problem->workspace.size() + way.problem->reserve.size()), way.errors.y,
             way.errors.gradients, picked ? "true" : "false", turns.clocks().c_str()));
}

template <class T>
void measure_one(const CellInfo& cell, const Shape& s, MatmulPrecision precision,
                 const Problem<T, double>& want, cudaStream_t stream, Report& report) {
  const bool tf32 = sizeof(T) == 4 && precision != MatmulPrecision::highest;
  const char* math = tf32 ? "tf32" : name_of<T>();
  const Errors bounds = sizeof(T) == 4 ? Errors{5e-3, tf32 ? 2e-2 : 1e-3} : Errors{0.05, 0.05};
  Products<T> gemm(cell, s, stream, precision);
  std::vector<Way<T>> all = ways<T>(cell, s, precision, stream);
  for (Way<T>& way : all) way.errors = checked(*way.problem, want, bounds, cell.name.c_str());
  for (const bool backward : {false, true}) {
    Turns turns(stream);
    const int products = gemm.add(turns, 4, backward);
    for (Way<T>& way : all) {
      const bool again = &way != &all.front() &&
                         way.plan(backward).strategy == all.front().plan(backward).strategy;
      if (again || !way.errors.within(bounds)) continue;
      Problem<T, T>& p = *way.problem;
      way.turns[backward] = turns.add(3, [&p, backward](int) {
        p.forward(backward ? p.training : p.inference);
        if (backward) p.backward();
      });
    }
    turns.measure();
    for (const Way<T>& way : all) {
      if (way.turns[backward] < 0) continue;
      report_way(cell, s, math, backward, &way == &all.front(), way, turns.time(products).ms, turns,
                 report);
    }
  }
}

template <class T>
void measure_all(const CellInfo& cell, const Shape& s, cudaStream_t stream, Report& report) {
  Problem<T, double> want(cell, s, false, Strategy::step_loop, stream);
  want.forward(want.training);
  want.backward();
  for (const MatmulPrecision precision : {MatmulPrecision::highest, MatmulPrecision::high}) {
    if (sizeof(T) != 4 && precision == MatmulPrecision::high) continue;  // of float32 alone
    measure_one<T>(cell, s, precision, want, stream, report);
  }
}

// The way that the planner picks, beside a step loop with the matrix of all heads and the layer
// with one head.
template <class T>
void measure_heads(const CellInfo& cell, const Shape& s, int heads, cudaStream_t stream,
                   Report& report) {
  using Layer = Problem<T, T>;
  const auto made = [&](auto& out, Strategy strategy, int of) {
    using Made = typename std::decay_t<decltype(out)>::element_type;
    out = std::make_unique<Made>(cell, s, false, strategy, stream, MatmulPrecision::highest,
                                 Stack{1, 1, of});
  };
  std::unique_ptr<Problem<T, double>> want;
  std::unique_ptr<Layer> own, spread, plain;
  made(want, Strategy::step_loop, heads);
  made(own, Strategy::automatic, heads);
  made(spread, Strategy::step_loop, heads);
  made(plain, Strategy::automatic, 1);
  want->forward(want->training);
  want->backward();
  const Errors errors = checked(*own, *want, {0.05, 0.05}, cell.name.c_str());
  checked(*spread, *want, {0.05, 0.05}, cell.name.c_str());
  plain->forward(plain->inference);
  plain->forward(plain->training);
  plain->backward();  // its products have chosen their algorithms
  if (!errors.within({0.05, 0.05})) return;
  for (const bool backward : {false, true}) {
    Turns turns(stream);
    const auto add = [&](Layer& layer) {
      return turns.add(3, [&layer, backward](int) {
        layer.forward(backward ? layer.training : layer.inference);
        if (backward) layer.backward();
      });
    };
    const int of_own = add(*own), of_spread = add(*spread), of_plain = add(*plain);
    turns.measure();
    const Timing time = turns.time(of_own);
    const double steps = static_cast<double>(s.steps);
    std::printf(
        "%-5s B%-2d T%-5d %2d heads of %-4d %-3s %8.4f ms, %6.3f us a step; spread, by "
        "step_loop %8.4f ms; one head %8.4f ms\n",
        cell.name.c_str(), (int)s.batch, (int)s.steps, heads, (int)s.hidden / heads,
        backward ? "f+b" : "f", time.ms, 1e3 * time.ms / steps, turns.time(of_spread).ms,
        turns.time(of_plain).ms);
    report.add(format(
        "{\"bench\": \"heads\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", "
        "\"pass\": \"%s\", \"B\": %d, \"T\": %d, \"H\": %d, \"heads\": %d, \"dtype\": \"%s\", "
        "\"ms\": %.5f, \"ms_spread\": %.5f, \"us_per_step\": %.4f, \"spread_ms\": %.5f, "
        "\"one_head_ms\": %.5f, \"max_error\": %.2e, \"gradient_error\": %.2e, %s}",
        cell.name.c_str(), way_of(backward ? own->training : own->inference).c_str(),
        backward ? "forward_backward" : "forward", (int)s.batch, (int)s.steps, (int)s.hidden, heads,
        name_of<T>(), time.ms, time.spread, 1e3 * time.ms / steps, turns.time(of_spread).ms,
        turns.time(of_plain).ms, errors.y, errors.gradients, turns.clocks().c_str()));
  }
}

// One step of four layers, from a state to one apart and to one in its place: in one launch, where
// it can be, beside the layers one by one.
template <class T>
void decode_stack(const CellInfo& cell, Index batch, Index hidden, cudaStream_t stream,
                  Report& report) {
  const Shape s{batch, 1, hidden};
  const Stack four{4, 1, 1};
  const bool dense = cell.recurrence == dispatch::Recurrence::dense;
  const Strategy strategy = dense ? Strategy::step_loop : Strategy::direct;
  Problem<T, double> want(cell, s, false, strategy, stream, MatmulPrecision::highest, four);
  want.forward(want.inference, true);
  std::vector<std::pair<std::string, std::unique_ptr<Problem<T, T>>>> ways;
  for (const bool as_one : {false, true}) {
    auto p = std::make_unique<Problem<T, T>>(cell, s, false, strategy, stream,
                                             MatmulPrecision::highest, four);
    p->inference.at_once = 1;
    if (as_one && !dispatch::step_as_one(p->inference)) continue;
    p->resize();
    p->forward(p->inference, true);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    const double error = worst_error(p->y, want.y, largest(want.y));
    const bool same = !as_one || same_bits(p->y, ways[0].second->y);
    if (!same || !(error < (sizeof(T) == 4 ? 5e-5 : 0.05))) {
      std::fprintf(stderr, "FAIL %s, a step of four layers: error %g%s, not timed\n",
                   cell.name.c_str(), error, same ? "" : " and other bits than layers one by one");
      ++failures;
      return;
    }
    ways.emplace_back(as_one ? "one launch" : "one by one", std::move(p));
  }
  Turns turns(stream);
  std::vector<int> timed[2];
  for (const bool in_place : {false, true}) {
    for (auto& way : ways) {
      Problem<T, T>& p = *way.second;
      timed[in_place].push_back(
          turns.add(100, [&p, in_place](int) { p.forward(p.inference, true, in_place); }));
    }
  }
  turns.measure();
  const int matrices = 4 * (dense ? 2 : 1);
  const double weights = static_cast<double>(matrices * cell.gates * hidden * hidden * sizeof(T));
  for (const bool in_place : {false, true}) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const Timing time = turns.time(timed[in_place][i]);
      const double gbps = weights / time.ms / 1e6;
      std::printf(
          "%-5s step of 4 layers B%-3d H%-5d %-8s %-10s %-8s %7.2f us, weights at %.0f GB/s\n",
          cell.name.c_str(), (int)batch, (int)hidden, name_of<T>(), ways[i].first.c_str(),
          in_place ? "in place" : "apart", 1e3 * time.ms, gbps);
      report.add(
          format("{\"bench\": \"stack_step\", \"cell\": \"%s\", \"way\": \"%s\", \"in_place\": %s, "
                 "\"layers\": 4, \"B\": %d, \"T\": 1, \"C\": %d, \"H\": %d, \"dtype\": \"%s\", "
                 "\"ms\": %.6f, \"ms_spread\": %.6f, \"weight_gbps\": %.0f, %s}",
                 cell.name.c_str(), ways[i].first.c_str(), in_place ? "true" : "false", (int)batch,
                 (int)hidden, (int)hidden, name_of<T>(), time.ms, time.spread, gbps,
                 turns.clocks().c_str()));
    }
  }
}

void measure_layers(cudaStream_t stream, const Copy&, Report& report) {
  for (const CellInfo& cell : cells()) {
    if (!only_cell.empty() && cell.name != only_cell) continue;
    const auto decode_stacks = [&](std::initializer_list<Index> batches) {
      for (const Index batch : batches) {
        decode_stack<__nv_bfloat16>(cell, batch, 1024, stream, report);
      }
    };
    if (cell.name == "MinGRU") decode_stacks({1, 8});
    if (cell.recurrence != dispatch::Recurrence::dense) continue;
    measure_heads<__nv_bfloat16>(cell, {16, 1024, 768}, 12, stream, report);
    measure_heads<__nv_bfloat16>(cell, {16, 1024, 1024}, 4, stream, report);
    for (const Index batch : {1, 8}) {
      decode<__nv_bfloat16>(cell, batch, 1024, stream, report);
      decode<float>(cell, batch, 1024, stream, report);
    }
    decode_stacks({1, 2, 4, 8, 16, 32, 64});
    decode_stack<__nv_bfloat16>(cell, 1, 512, stream, report);
    decode_stack<__nv_bfloat16>(cell, 1, 2048, stream, report);
    decode_stack<float>(cell, 1, 1024, stream, report);
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
