// SPDX-License-Identifier: Apache-2.0
// As kernels_test.cpp, kernels and their parts that a plain call of one layer does not reach:
// layers that run at the same time or as one launch, marks of ragged batches, what training draws,
// and steps of whole lines outside the persistent kernel.
#include "scanrnn/dispatch/ragged.h"
#include "support/by_lines.h"
#include "support/kernel_case.h"

namespace scanrnn::test {
namespace {

using dispatch::Plan;
using dispatch::Strategy;
using Split = Way::Split;

// A stack whose calls run together as `split` says.
Small together(const char* kernel, const CellInfo& cell, Dtype dtype, Split split, int layers) {
  Small out{kernel, small_case(cell, dtype, Strategy::persistent, 12, 3, 64)};
  out.c.layer.num_layers = layers;
  out.c.layer.bidirectional = layers == 1;
  const Way way{Strategy::persistent, split};
  out.change = [way](Plan& plan) {
    plan = way.splits(plan);
    EXPECT_EQ(plan.at_once, plan.problem.chained ? 3 : 2);
    EXPECT_EQ(plan.persistent.layers, way.split == Split::as_one ? 3 : 1);
  };
  return out;
}

// Three sequences, one of them empty; packed, or in the first steps of a rectangle.
Small marked(const char* kernel, const CellInfo& cell, Dtype dtype, Strategy strategy,
             std::vector<std::int64_t> lengths, bool packed, std::int64_t hidden = 40) {
  LayerOptions layer;
  layer.cell = cell.cell;
  layer.dtype = dtype;
  const RaggedCase ragged = ragged_case(layer, lengths, packed);
  Small out{kernel, ragged.whole};
  out.c.layer.input_size = 24;
  out.c.layer.hidden_size = hidden;
  fit(out.c.layer);
  out.c.way = strategy;
  out.lengths = std::move(lengths);
  return out;
}

// Draws all that training can.
void take_draws(Small& small, Strategy strategy) {
  const LayerOptions drawn = drawing_case(small.c.layer, strategy).layer;
  for (const auto option :
       {&LayerOptions::dropconnect, &LayerOptions::input_dropout, &LayerOptions::state_dropout,
        &LayerOptions::zoneout, &LayerOptions::zoneout_cell}) {
    small.c.layer.*option = drawn.*option;
  }
}

Small drawing(const char* kernel, const CellInfo& cell, Dtype dtype, Strategy strategy,
              std::int64_t steps) {
  Small out{kernel, small_case(cell, dtype, strategy, steps, 3)};
  take_draws(out, strategy);
  return out;
}

void add_dense(const CellInfo& cell, Dtype dtype, std::vector<Small>& out) {
  out.push_back(together("chain_as_one", cell, dtype, Split::as_one, 3));
  out.push_back(together("chain_by_parts", cell, dtype, Split::at_once, 3));
  out.push_back(together("directions_at_once", cell, dtype, Split::at_once, 1));
  out.push_back(marked("step_marks", cell, dtype, Strategy::step_loop, {3, 0, 4}, true));
  const auto expect_alone = [](Plan& plan) {
    EXPECT_TRUE(plan.persistent.alone && plan.persistent_vjp.alone);
  };
  for (const bool packed : {false, true}) {
    const char* kernel = packed ? "alone_marks_packed" : "alone_marks";
    out.push_back(marked(kernel, cell, dtype, Strategy::persistent, {6, 0, 4}, packed));
    out.back().change = expect_alone;
  }
  if (dtype != Dtype::float32) {
    out.push_back(marked("block_marks", cell, dtype, Strategy::persistent, {6, 0, 4}, false));
    out.back().change = [](Plan& plan) {
      cut_as(plan, false, [](const auto& shape) { return shape.in_block && !shape.alone; });
    };
  }
  out.push_back(marked("slices_marks", cell, dtype, Strategy::persistent, {6, 0, 9}, true, 200));
  out.push_back(drawing("step_draws", cell, dtype, Strategy::step_loop, 3));
  out.push_back(drawing("alone_draws", cell, dtype, Strategy::persistent, 19));
  out.back().change = expect_alone;
  out.push_back(drawing("slices_draws", cell, dtype, Strategy::persistent, 6));
  out.back().change = [](Plan& plan) {
    for (const bool backward : {false, true}) {
      cut_as(plan, backward, [](const auto& shape) { return !shape.in_block; });
    }
  };
}

void add_linear(const CellInfo& cell, Dtype dtype, std::vector<Small>& out) {
  const auto walk = Strategy::fused_sequential, scan = Strategy::parallel_scan;
  out.push_back(marked("sequential_marks", cell, dtype, walk, {20, 0, 17}, true));
  out.push_back(marked("steady_marks", cell, dtype, walk, {190, 0, 170}, false));
  out.push_back(drawing("sequential_draws", cell, dtype, walk, 37));
  if (cell.recurrence != dispatch::Recurrence::linear) return;
  const auto expect_across = [](Plan& plan) { EXPECT_TRUE(plan.across_blocks); };
  out.push_back(marked("device_marks", cell, dtype, scan, {400, 0, 200}, true));
  out.back().change = expect_across;
  out.push_back(drawing("device_draws", cell, dtype, scan, 150));
  out.back().change = expect_across;
  // Resets are what only the scan knows beside draws, whatever is planned.
  out.push_back(marked("device_marks_draws", cell, dtype, walk, {150, 0, 70}, false));
  take_draws(out.back(), walk);
  out.back().change = [](Plan& plan) { EXPECT_TRUE(dispatch::scans_resets(plan)); };
}

void add_lines(Dtype dtype, std::vector<Small>& out) {
  for (const LayerOptions& options : layers_by_lines()) {
    const CellInfo& cell = info(options.cell);
    const std::string what = options.layer_norm ? "_normed" : "_reset";
    const Strategy loop = ways_of_layer(options)[0].strategy;
    const auto add = [&](const std::string& kernel, Small small) {
      take_options(small.c, options);
      small.kernel = kernel + what;
      out.push_back(std::move(small));
    };
    add("lines_steps", {"", small_case(cell, dtype, loop, 4, 3)});
    if (!is_dense(options)) continue;
    add("lines_marks", marked("", cell, dtype, Strategy::persistent, {6, 0, 4}, true));
    Small drawn{"", small_case(cell, dtype, Strategy::persistent, 6, 3)};
    add("lines_draws", drawn);
    out.back().c.layer.zoneout = 0.3;
  }
}

std::vector<Small> option_cases(Dtype dtype) {
  std::vector<Small> out;
  for (const CellInfo& cell : cells()) {
    const bool dense = cell.recurrence == dispatch::Recurrence::dense;
    (dense ? add_dense : add_linear)(cell, dtype, out);
  }
  add_lines(dtype, out);
  return out;
}

// A chain in one launch has rows of whole 64 bytes, and so bulk copies in 16 bits.
std::vector<Small> half_cases(bool chains) {
  std::vector<Small> out = option_cases(Dtype::bfloat16);
  const auto other = [&](const Small& small) { return (small.kernel == "chain_as_one") != chains; };
  out.erase(std::remove_if(out.begin(), out.end(), other), out.end());
  return chains ? out : without_bulk_copies(std::move(out));
}

class OptionCudaKernelsTest : public CudaTest, public testing::WithParamInterface<Small> {};

TEST_P(OptionCudaKernelsTest, OnASmallCase) { expect_right(GetParam()); }

const auto name_of = [](const auto& of) { return of.param.name(); };
INSTANTIATE_TEST_SUITE_P(OptionKernels, OptionCudaKernelsTest,
                         testing::ValuesIn(option_cases(Dtype::float32)), name_of);
INSTANTIATE_TEST_SUITE_P(HalfOptionKernels, OptionCudaKernelsTest,
                         testing::ValuesIn(half_cases(false)), name_of);
INSTANTIATE_TEST_SUITE_P(BulkCopies, OptionCudaKernelsTest, testing::ValuesIn(half_cases(true)),
                         name_of);

}  // namespace
}  // namespace scanrnn::test
