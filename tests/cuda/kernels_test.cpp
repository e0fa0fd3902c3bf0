// SPDX-License-Identifier: Apache-2.0
// Every kernel of the library on a small case of its own, named for it, as a plain call of one
// layer takes it. option_kernels_test.cpp has those of layers that run together, of marks and of
// draws.
#include <algorithm>

#include "scanrnn/dispatch/large.h"
#include "scanrnn/dispatch/tiles.h"
#include "support/by_lines.h"
#include "support/kernel_case.h"

namespace scanrnn::test {
namespace {

using dispatch::Plan;
using dispatch::Strategy;

// A part of R in shared memory, whatever the planner would rather do.
void put_in_shared_memory(Plan& plan, bool backward) {
  cut_as(plan, backward, [&](const dispatch::PersistentShape& shape) {
    const auto& tile = backward ? dispatch::kPersistentBackward[shape.tile]
                                : dispatch::kPersistentForward[shape.tile];
    return !shape.in_block && !shape.large && tile.shared_chunks > 0;
  });
}

// Where a device has room for a group of each line: two, so that a block has several lines, and the
// emulator few blocks to play.
void put_in_two_groups(Plan& plan) {
  for (dispatch::PersistentShape* shape : {&plan.persistent, &plan.persistent_vjp}) {
    ASSERT_GT(shape->groups, 2);
    shape->lines = shape->lines / shape->groups * 2;
    shape->groups = 2;
  }
}

void add_linear(const CellInfo& cell, Dtype dtype, std::vector<Small>& out) {
  const auto add = [&](const char* kernel, Strategy strategy, std::int64_t steps, bool across,
                       Domain domain = Domain::log, std::int64_t hidden = 40) {
    const bool composes = cell.recurrence == dispatch::Recurrence::linear;
    if (strategy == Strategy::parallel_scan && !composes) return;
    Small small{kernel, small_case(cell, dtype, strategy, steps, 2, hidden)};
    small.c.layer.domain = domain;
    small.change = [across](Plan& plan) { plan.across_blocks = across; };
    out.push_back(small);
  };
  add("direct", Strategy::direct, 3, false);
  for (const std::int64_t batch : {2, 11}) {  // of one step, by tensor cores in 16 bits
    add(batch == 2 ? "direct_step" : "direct_step_lines", Strategy::direct, 1, false);
    out.back().c.batch = batch;
  }
  add("sequential", Strategy::fused_sequential, 37, false);
  add("sequential_steady", Strategy::fused_sequential, 170, false);
  add("block", Strategy::parallel_scan, 150, false);
  add("device_log", Strategy::parallel_scan, 600, true);
  add("device_linear", Strategy::parallel_scan, 600, true, Domain::linear);
  // Sizes of which no vector can be made.
  add("direct_odd", Strategy::direct, 3, false, Domain::log, 37);
  add("sequential_odd", Strategy::fused_sequential, 37, false, Domain::log, 37);
  add("block_odd", Strategy::parallel_scan, 150, false, Domain::log, 37);
  add("device_odd", Strategy::parallel_scan, 600, true, Domain::log, 37);
}

void add_dense(const CellInfo& cell, Dtype dtype, std::vector<Small>& out) {
  const auto add = [&](const std::string& kernel, Strategy strategy, std::int64_t steps,
                       std::int64_t batch, std::int64_t hidden = 40) -> Small& {
    out.push_back({kernel, small_case(cell, dtype, strategy, steps, batch, hidden)});
    return out.back();
  };
  const auto fused = [](bool wanted) {
    return [wanted](Plan& plan) { EXPECT_EQ(plan.fused_steps, wanted); };
  };
  add("step", Strategy::step_loop, 3, 21).change = fused(false);
  add("fused_step", Strategy::step_loop, 3, 3).change = fused(true);
  add("fused_step_odd", Strategy::step_loop, 3, 3, 37).change = fused(true);
  add("fused_single", Strategy::step_loop, 1, 1).change = fused(true);
  if (dtype == Dtype::bfloat16) add("fused_lines", Strategy::step_loop, 2, 9).change = fused(true);
  for (const int unit_blocks : {1, 2}) {
    const std::string wide = unit_blocks == 1 ? "" : "_wide";
    const std::int64_t hidden = unit_blocks == 1 ? 40 : 100;
    const auto is_ours = [unit_blocks](const dispatch::PersistentShape& shape, bool alone) {
      return shape.in_block && shape.alone == alone && shape.tile == unit_blocks - 1;
    };
    add("persistent_alone" + wide, Strategy::persistent, 6, 3, hidden).change = [=](Plan& plan) {
      for (const bool backward : {false, true}) {
        cut_as(plan, backward, [=](const auto& shape) { return is_ours(shape, true); });
      }
    };
    if (dtype == Dtype::float32) continue;  // which has no other such kernel
    add("persistent_block" + wide, Strategy::persistent, 6, 3, hidden).change = [=](Plan& plan) {
      cut_as(plan, false, [=](const auto& shape) { return is_ours(shape, false); });
    };
  }
  const auto in_slices = [](Plan& plan) {
    EXPECT_TRUE(plan.persistent.tile >= 0 && !plan.persistent.in_block);
    EXPECT_GE(plan.persistent_vjp.tile, 0);
  };
  add("persistent_slices", Strategy::persistent, 6, 3, 200).change = in_slices;
  add("persistent_slices_odd", Strategy::persistent, 6, 11, 137).change = [=](Plan& plan) {
    in_slices(plan);
    put_in_two_groups(plan);
  };
  add("persistent_shared", Strategy::persistent, 6, 3, 200).change = [](Plan& plan) {
    put_in_shared_memory(plan, false);
    put_in_shared_memory(plan, true);
  };
  if (dtype == Dtype::bfloat16) {  // by warp groups, on a device that has them
    Small& large = add("persistent_large", Strategy::persistent, 4, 3, 256);
    large.change = [](Plan& plan) {
      const bool longer = plan.problem.hidden_size % 32 != 0;  // without bulk copies
      if (!plan.device.warp_groups || longer) return;
      cut_as(plan, false, [](const auto& shape) { return shape.large; });
      const bool fits =
          dispatch::large_back_fits(dispatch::kLargeBackward[0], 256, plan.problem.gates);
      if (fits) cut_as(plan, true, [](const auto& shape) { return shape.large; });
    };
  }
  // By heads: those of a block, and those of several.
  for (const auto& [kernel, hidden, in_block] :
       {std::tuple{"persistent_block_heads", 39, true}, {"persistent_slices_heads", 411, false}}) {
    Small& small = add(kernel, Strategy::persistent, 6, 3, hidden);
    small.c.layer.num_heads = 3;
    small.change = [in_block = in_block](Plan& plan) {
      EXPECT_EQ(plan.persistent.in_block, in_block);
      EXPECT_GE(plan.persistent_vjp.tile, 0);
      EXPECT_EQ(plan.persistent.heads, 3);
    };
  }
  if (dtype != Dtype::float32) return;
  Small& slices = add("persistent_slices_tf32", Strategy::persistent, 6, 3, 200);
  slices.precision = MatmulPrecision::high;
  slices.change = [](Plan& plan) {  // as of groups that have more than a line each
    EXPECT_TRUE(plan.persistent.split_products && plan.persistent_vjp.split_products);
    plan.persistent.split_products = plan.persistent_vjp.split_products = false;
  };
  add("fused_lines_tf32", Strategy::step_loop, 2, 9).precision = MatmulPrecision::high;
  Small& many = add("fused_many_lines_tf32", Strategy::step_loop, 2, 19);  // as beside a large R
  many.precision = MatmulPrecision::high;
  many.change = [](Plan& plan) { plan.fused_steps = true; };
}

void add_lines(Dtype dtype, std::vector<Small>& out) {
  for (const LayerOptions& options : layers_by_lines()) {
    if (!is_dense(options)) continue;
    const std::string kernel = options.layer_norm ? "lines_normed" : "lines_reset";
    const auto add = [&](const char* end, std::int64_t batch, std::int64_t hidden) -> Small& {
      out.push_back({kernel + end, small_case(info(options.cell), dtype, Strategy::persistent, 6,
                                              batch, hidden)});
      take_options(out.back().c, options);
      return out.back();
    };
    add("", 3, 200);
    add("_odd", 11, 137).change = put_in_two_groups;
    // In several launches, of steps and of lines.
    add("_parts", 5, 40).change = [](Plan& plan) {
      for (dispatch::PersistentShape* shape : {&plan.persistent, &plan.persistent_vjp}) {
        shape->steps = 2;
        shape->lines = shape->groups = 2;
      }
    };
    if (dtype == Dtype::float32) add("_tf32", 3, 200).precision = MatmulPrecision::high;
  }
}

std::vector<Small> small_cases(std::initializer_list<Dtype> dtypes) {
  std::vector<Small> out;
  for (const Dtype dtype : dtypes) {
    add_lines(dtype, out);
    for (const CellInfo& cell : cells()) {
      const bool dense = cell.recurrence == dispatch::Recurrence::dense;
      (dense ? add_dense : add_linear)(cell, dtype, out);
      out.push_back({"no_steps", small_case(cell, dtype, Strategy::automatic, 0, 3)});
      out.push_back({"no_lines", small_case(cell, dtype, Strategy::automatic, 5, 0)});
      // Both directions of two layers, the first of which has what SRU adds to its output.
      Small stack{"stack", small_case(cell, dtype, Strategy::automatic, 9, 3)};
      stack.c.layer.input_size = stack.c.layer.hidden_size;
      stack.c.layer.num_layers = 2;
      stack.c.layer.bidirectional = true;
      fit(stack.c.layer);
      out.push_back(stack);
      stack.kernel = "dropout";
      stack.c.layer.dropout = 0.25;
      out.push_back(stack);
    }
  }
  return out;
}

class CudaKernelsTest : public CudaTest, public testing::WithParamInterface<Small> {};

TEST_P(CudaKernelsTest, OnASmallCase) { expect_right(GetParam()); }
const auto name_of = [](const auto& of) { return of.param.name(); };
INSTANTIATE_TEST_SUITE_P(Kernels, CudaKernelsTest, testing::ValuesIn(small_cases({Dtype::float32})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(HalfKernels, CudaKernelsTest,
                         testing::ValuesIn(without_bulk_copies(small_cases({Dtype::bfloat16}))),
                         name_of);
INSTANTIATE_TEST_SUITE_P(BulkCopies, CudaKernelsTest,
                         testing::ValuesIn(small_cases({Dtype::bfloat16})), name_of);

// Every cut of a persistent kernel that the planner may pick, of both passes.
class CudaCutsTest : public CudaTest, public testing::WithParamInterface<LayerOptions> {};

TEST_P(CudaCutsTest, EveryOne) {
  Random random(96);
  Context& context = shared_context(1);
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
    Case c = small_case(info(GetParam().cell), dtype, Strategy::persistent, 7, 19, 300);
    take_options(c, GetParam());
    const Data data = random_data(c, random);
    const oracle::Answer want = oracle::run(c, data);
    const Plan picked =
        Layer(c.layer).plan(context, c.steps, c.batch, Mode::training, Strategy::persistent);
    for (const bool backward : {false, true}) {
      for (const auto& shape :
           dispatch::persistent_shapes(picked.problem, picked.device, backward)) {
        SCOPED_TRACE((backward ? "backward, tile " : "forward, tile ") +
                     std::to_string(shape.tile) + ", warps along units " +
                     std::to_string(shape.warps_along_units));
        Plan plan = picked;
        (backward ? plan.persistent_vjp : plan.persistent) = shape;
        expect_conforms(c, run(c, data, context, plan), want);
        if (HasFailure()) return;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Dense, CudaCutsTest,
                         testing::ValuesIn(dense_variants(with_layers_by_lines(all_variants()))),
                         variant_name);

// And those by warp groups, with lines that do not fill their groups; of both directions, in
// launches of a few steps, and where a block has less than the lines, of some of these.
class LargeCutsTest : public CudaTest, public testing::WithParamInterface<LayerOptions> {
 protected:
  // Tries the cuts of a pass that `picked` may have, and says how many there are.
  static std::size_t expect_right(const Case& c, const Data& data, const oracle::Answer& want,
                                  const Plan& picked, bool backward) {
    std::size_t count = 0;
    for (auto shape : dispatch::persistent_shapes(picked.problem, picked.device, backward)) {
      if (!shape.large || HasFailure()) continue;
      SCOPED_TRACE((backward ? "backward, tile " : "forward, tile ") + std::to_string(shape.tile));
      ++count;
      shape.steps = 2;
      if (shape.tile % 2 == 0) {
        shape.lines /= shape.groups;
        shape.groups = 1;
      }
      Plan plan = picked;
      (backward ? plan.persistent_vjp : plan.persistent) = shape;
      expect_conforms(c, run(c, data, shared_context(1), plan), want);
    }
    return count;
  }
};

TEST_P(LargeCutsTest, EveryOne) {
  Context& context = shared_context(1);
  if (!context.limits().warp_groups) GTEST_SKIP() << "warp groups do not multiply here";
  Random random(97);
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
    Case c = small_case(info(GetParam().cell), dtype, Strategy::persistent, 3, 70, 768);
    take_options(c, GetParam());
    c.layer.bidirectional = dtype == Dtype::bfloat16;
    const Data data = random_data(c, random);
    const oracle::Answer want = oracle::run(c, data);
    Plan plan =
        Layer(c.layer).plan(context, c.steps, c.batch, Mode::training, Strategy::persistent);
    plan.at_once = plan.at_once_vjp = 1;
    EXPECT_EQ(expect_right(c, data, want, plan, false), std::size(dispatch::kLargeTiles));
    const auto fits = [&](dispatch::LargeTile tile) {
      const int gates = plan.problem.gates;
      return dispatch::large_back_fits(tile, 768, gates) &&
             dispatch::large_back_memory(tile, 768, gates).all() <= plan.device.shared_bytes;
    };
    const auto& tiles = dispatch::kLargeBackward;
    const auto count = std::count_if(std::begin(tiles), std::end(tiles), fits);
    EXPECT_EQ(expect_right(c, data, want, plan, true), static_cast<std::size_t>(count));
  }
}
INSTANTIATE_TEST_SUITE_P(Dense, LargeCutsTest, testing::ValuesIn(dense_variants()), variant_name);

}  // namespace
}  // namespace scanrnn::test
