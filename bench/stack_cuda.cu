// SPDX-License-Identifier: Apache-2.0
// Both directions and four layers of LSTM and GRU on CUDA through the public API, beside one layer:
// as the planner picks, layer call after layer call, at the same time by parts of several lengths,
// and a chain in one launch. Outputs and gradients go against a float64 run first. Runs take turns.
//   stack_cuda [--json FILE] [--cell NAME]
#include <memory>
#include <string>
#include <vector>

#include "layer_cuda.cuh"

namespace scanrnn::bench {
namespace {

using dispatch::Strategy;
using Lines = Problem<__nv_bfloat16, __nv_bfloat16>;

struct Way {
  std::string name;
  std::unique_ptr<Lines> problem;
  Errors errors{};
  int turns[2] = {-1, -1};
};

std::unique_ptr<Lines> problem(const CellInfo& cell, const Shape& s, const Stack& stack,
                               cudaStream_t stream) {
  return std::make_unique<Lines>(cell, s, false, Strategy::automatic, stream,
                                 MatmulPrecision::highest, stack);
}

// With plans that share(plan) has told how calls run at the same time; nothing where they cannot.
template <class F>
std::unique_ptr<Lines> shared(const CellInfo& cell, const Shape& s, const Stack& stack,
                              cudaStream_t stream, const F& share) {
  auto out = problem(cell, s, stack, stream);
  for (dispatch::Plan* plan : {&out->inference, &out->training}) {
    if (!share(*plan)) return nullptr;
  }
  out->resize();
  return out;
}

// How the layer calls of a plan's pass run.
std::string how_pass(const dispatch::Plan& plan, bool backward) {
  const auto [calls, part_steps] = dispatch::together(plan, backward);
  const std::string count = std::to_string(calls);
  if (calls == 1) return "one by one";
  if (part_steps > 0) return count + " by parts of " + std::to_string(part_steps);
  return count + (plan.problem.chained ? " in a launch" : " at once");
}
std::string how(const dispatch::Plan& plan) {
  const std::string forward = how_pass(plan, false);
  const std::string backward = plan.problem.training ? how_pass(plan, true) : forward;
  return forward == backward ? forward : forward + ", backward " + backward;
}

std::vector<Way> ways(const CellInfo& cell, const Shape& s, const Stack& stack,
                      cudaStream_t stream) {
  std::vector<Way> out;
  out.push_back({"picked", problem(cell, s, stack, stream)});
  if (stack.layers * stack.directions == 1) return out;
  const auto add = [&](auto share) {
    auto way = shared(cell, s, stack, stream, share);
    if (way) out.push_back({how(way->inference), std::move(way)});
  };
  add([](auto& plan) { return dispatch::run_at_once(plan, 1, 0); });
  for (const int most : {2, 4}) {
    if (most > stack.layers * stack.directions) continue;
    add([=](auto& plan) { return dispatch::run_as_one(plan, most); });
    for (const Index part : {32, 64, 128}) {
      if (stack.layers == 1 && part > 32) continue;  // directions have no parts
      add([=](auto& plan) { return dispatch::run_at_once(plan, most, part); });
    }
  }
  return out;
}

std::string name_of(const Stack& stack) {
  return stack.directions == 2 ? "both directions"
         : stack.layers == 1   ? "one layer"
                               : std::to_string(stack.layers) + " layers";
}

void report_way(const CellInfo& cell, const Shape& s, const Stack& stack, const Way& way,
                bool backward, const Timing& time, double one, const Turns& turns, Report& report) {
  const std::string name = name_of(stack);
  const std::string plan = how(backward ? way.problem->training : way.problem->inference);
  std::printf("%-5s B%-3d T%-5d H%-5d %-16s %-3s %-16s %-20s %8.4f ms, %.2f of one layer\n",
              cell.name.c_str(), (int)s.batch, (int)s.steps, (int)s.hidden, name.c_str(),
              backward ? "f+b" : "f", way.name.c_str(), plan.c_str(), time.ms, time.ms / one);
  report.add(format(
      "{\"bench\": \"stacks\", \"cell\": \"%s\", \"stack\": \"%s\", \"way\": \"%s\", \"plan\": "
      "\"%s\", \"pass\": \"%s\", \"layout\": \"TBH\", \"B\": %d, \"T\": %d, \"C\": %d, \"H\": %d, "
      "\"dtype\": "
      "\"bfloat16\", \"ms\": %.5f, \"ms_spread\": %.5f, \"share\": %.3f, \"max_error\": %.2e, "
      "\"gradient_error\": %.2e, %s}",
      cell.name.c_str(), name.c_str(), way.name.c_str(), plan.c_str(),
      backward ? "forward_backward" : "forward", (int)s.batch, (int)s.steps, (int)s.hidden,
      (int)s.hidden, time.ms, time.spread, time.ms / one, way.errors.y, way.errors.gradients,
      turns.clocks().c_str()));
}

void measure_shape(const CellInfo& cell, const Shape& s, cudaStream_t stream, Report& report) {
  std::vector<std::pair<Stack, std::vector<Way>>> stacks;
  for (const Stack& stack : {Stack{}, Stack{1, 2}, Stack{4, 1}}) {
    Problem<__nv_bfloat16, double> want(cell, s, false, Strategy::step_loop, stream,
                                        MatmulPrecision::highest, stack);
    want.forward(want.training);
    want.backward();
    stacks.emplace_back(stack, ways(cell, s, stack, stream));
    for (Way& way : stacks.back().second) {
      way.errors = checked(*way.problem, want, {0.05, 0.05}, way.name.c_str());
    }
  }
  for (const bool backward : {false, true}) {
    Turns turns(stream);
    for (auto& [stack, all] : stacks) {
      for (Way& way : all) {
        Lines& p = *way.problem;
        way.turns[backward] = turns.add(2, [&p, backward](int) {
          p.forward(backward ? p.training : p.inference);
          if (backward) p.backward();
        });
      }
    }
    turns.measure();
    const double one = turns.time(stacks.front().second.front().turns[backward]).ms;
    for (const auto& [stack, all] : stacks) {
      for (const Way& way : all) {
        report_way(cell, s, stack, way, backward, turns.time(way.turns[backward]), one, turns,
                   report);
      }
    }
  }
}

void measure_stacks(cudaStream_t stream, const Copy&, Report& report) {
  for (const CellInfo& cell : cells()) {
    if (only_cell.empty() ? cell.name != "LSTM" && cell.name != "GRU" : cell.name != only_cell) {
      continue;
    }
    for (const Shape& s : {Shape{16, 512, 512}, Shape{16, 512, 256}, Shape{4, 512, 512},
                           Shape{16, 1024, 768}, Shape{1, 2048, 512}, Shape{64, 128, 1024}}) {
      measure_shape(cell, s, stream, report);
    }
  }
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  return scanrnn::bench::bench_main(argc, argv, scanrnn::bench::measure_stacks);
}
