// SPDX-License-Identifier: Apache-2.0
// Options, sizes and devices that cannot be are refused before there is a tensor: the message names
// what is wrong, says what came and what was wanted.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/library.h"
#include "support/wrong.h"

namespace scanrnn::test {
namespace {

TEST(Errors, Options) {
  struct Option {
    std::function<void(LayerOptions&)> set;
    std::vector<std::string> words;
  };
  const Option options[] = {
      {[](auto& o) { o.input_size = 0; }, {"input_size", "0"}},
      {[](auto& o) { o.input_dropout = 1; }, {"input_dropout", "[0, 1)", "1"}},
      {[](auto& o) { o.input_dropout = -0.5; }, {"input_dropout", "-0.5"}},
      {[](auto& o) { o.dropconnect = 0.25; }, {"dropconnect: MinGRU has no such option", "0.25"}},
      {[](auto& o) { o.cell = Cell::LSTM, o.dropconnect = 1; }, {"dropconnect", "[0, 1)", "1"}},
      {[](auto& o) { o.zoneout = 1; }, {"zoneout", "[0, 1)", "1"}},
      {[](auto& o) { o.zoneout_cell = 0.5; }, {"zoneout_cell: MinGRU has no such option"}},
      {[](auto& o) { o.state_dropout = 0.5; }, {"state_dropout: MinGRU has no such option"}},
      {[](auto& o) { o.num_heads = 2; }, {"num_heads: MinGRU has no such option", "2"}},
      {[](auto& o) { o.projection_size = std::numeric_limits<std::int64_t>::max(); },
       {"projection_size: MinGRU has no such option, got 9.22337203685477"}},
      {[](auto& o) { o.num_layers = std::numeric_limits<int>::max(); },
       {"num_layers: expected a number up to 65536, got 2147483647"}},
      {[](auto& o) { o.cell = Cell::LSTM, o.variant = 1; },
       {"variant: expected an index below 1, got 1"}},
      {[](auto& o) { o.dropout = 1.0000001; }, {"dropout: ", "got 1.0000001"}},
      {[](auto& o) { o.dropout = -1e-9; }, {"dropout: ", "got -1e-09"}},
      {[](auto& o) { o.rescale = true; }, {"rescale: MinGRU has no such option"}},
      {[](auto& o) { o.cell = Cell::LSTM, o.proj_size = o.hidden_size; }, {"proj_size", "below"}},
      {[](auto& o) { o.cell = Cell::GRU, o.num_heads = 1000; }, {"num_heads", "divisor", "1000"}},
      {[](auto& o) { o.reset_after = false; }, {"reset_after: MinGRU has no such option", "0"}},
      {[](auto& o) { o.layer_norm = true; }, {"layer_norm: MinGRU has no such option", "1"}},
      {[](auto& o) { o.cell = Cell::PeepholeLSTM, o.layer_norm = true; },
       {"layer_norm: expected False with peephole", "True"}},
      {[](auto& o) { o.cell = Cell::GRU, o.layer_norm = true, o.reset_after = false; },
       {"layer_norm: expected False with reset_after=False", "True"}},
      {[](auto& o) { o.input_size = -3; }, {"input_size", "-3"}},
      {[](auto& o) { o.hidden_size = 0; }, {"hidden_size", "0"}},
      {[](auto& o) { o.num_layers = 0; }, {"num_layers", "0"}},
      {[](auto& o) { o.dropout = 1; }, {"dropout", "1"}},
      {[](auto& o) { o.dropout = -0.5; }, {"dropout", "-0.5"}},
      {[](auto& o) { o.dropout = NAN; }, {"dropout", "nan"}},
      {[](auto& o) { o.variant = 3; }, {"candidate", "3"}},
      {[](auto& o) { o.variant = -1; }, {"candidate", "-1"}},
      {[](auto& o) { o.cell = static_cast<Cell>(200); }, {"cell: expected an index below", "200"}},
  };
  for (const Option& option : options) {
    LayerOptions changed = error_case().layer;
    option.set(changed);
    expect_error<value_error>([&] { Layer layer(changed); }, option.words);
  }
  LayerOptions sru = error_case().layer;
  sru.cell = Cell::SRU;
  sru.variant = 7;
  expect_error<value_error>([&] { Layer layer(sru); }, {"activation", "7"});
}

TEST(Errors, Plan) {
  const Layer layer(error_case().layer);
  const Context context = make_context(1);
  expect_error<value_error>([&] { layer.plan(context, -1, 3, Mode::inference); }, {"steps", "-1"});
  expect_error<value_error>([&] { layer.plan(context, 3, -2, Mode::inference); }, {"batch", "-2"});
}

// Bytes are counted in 64 bits, and what would wrap is not counted at all.
TEST(Errors, MoreThanCanBeCounted) {
  const std::int64_t many = std::int64_t{1} << 40;
  const Context context = make_context(1);
  const Layer layer(error_case().layer);
  expect_error<value_error>([&] { layer.plan(context, many, many, Mode::training); },
                            {"steps: 1099511627776 steps of a batch of 1099511627776 take more"});
  EXPECT_GT(layer.sizes(layer.plan(context, many, 1, Mode::training)).reserve, many);
  // Nor where there are no steps, or no sequences: some memory is of the other.
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  expect_error<value_error>([&] { layer.plan(context, 0, most, Mode::training); },
                            {"steps: 0 steps of a batch of 9223372036854775807 take more"});
  expect_error<value_error>([&] { layer.plan(context, most, 0, Mode::training); }, {"take more"});
  expect_error<value_error>(
      [&] { layer.plan(context, BatchShape{10, most, dispatch::Batch::packed}, Mode::inference); },
      {"steps: 10 steps of a batch of 9223372036854775807 take more"});
  expect_error<value_error>([&] { linear_scan_plan(context, {most, 1, 0}); }, {"take more"});
  expect_error<value_error>([&] { linear_scan_plan(context, {0, many, many}); }, {"take more"});
  LayerOptions wide = error_case().layer;
  wide.input_size = wide.hidden_size = many;
  expect_error<value_error>([&] { Layer{wide}; }, {"hidden_size: weights of 1099511627776 units"});

  LayerOptions between = error_case().layer;
  between.cell = Cell::SRU;
  between.input_size = std::int64_t{1} << 31;
  between.projection_size = std::int64_t{1} << 33;
  expect_error<value_error>([&] { Layer{between}; },
                            {"projection_size: weights of 8589934592 projections of 2147483648"});

  LayerOptions square;
  square.cell = Cell::RGLRU;
  square.input_size = 4;
  square.hidden_size = 5;
  expect_error<value_error>([&] { Layer{square}; },
                            {"hidden_size: RGLRU", "expected input_size, 4, got 5"});
  square.hidden_size = 4;
  square.bidirectional = true;
  EXPECT_NO_THROW(Layer{square});
  square.num_layers = 2;
  expect_error<value_error>([&] { Layer{square}; }, {"bidirectional: RGLRU", "num_layers=2"});
  expect_error<value_error>([&] { linear_scan_plan(context, {many, 1, many}); },
                            {"steps: 1099511627776 steps of 1099511627776 rows take more"});

  // However many threads there are, a parallel scan has states for those that get a chunk.
  const auto parallel = [&](int threads, std::int64_t rows) {
    auto plan = linear_scan_plan(make_context(threads), {1, 1, rows, Dtype::float64},
                                 dispatch::Strategy::parallel_scan);
    plan.across_blocks = on_cuda();  // a scan inside a block keeps nothing
    return linear_scan_workspace(plan);
  };
  EXPECT_GT(parallel(1000, many), static_cast<std::size_t>(many));
  EXPECT_EQ(parallel(1000, many), parallel(1, many));
}

TEST(Errors, ByName) {
  LayerOptions options;
  const auto set = [&](const char* name, double value) {
    return [&, name, value] { set_option(options, name, value); };
  };
  expect_error<value_error>(set("draws", 7), {"draws: expected 0 or 1, got 7"});
  expect_error<value_error>(set("draws", NAN), {"draws: expected an integer, got nan"});
  expect_error<value_error>(set("num_heads", 1e12), {"num_heads: expected an integer up to"});
  expect_error<value_error>(set("proj_size", INFINITY), {"proj_size: expected an integer up to"});
  expect_error<value_error>(set("layer_norm", 2), {"layer_norm: expected 0 or 1, got 2"});
  expect_error<value_error>(set("drops", 1), {"option: there is no 'drops'"});
  set("num_heads", 4)(), set("draws", 0)();
  EXPECT_EQ(options.num_heads, 4);
  EXPECT_FALSE(options.draws);
}

TEST(Errors, MoreMemoryThanThereCanBe) {
  Context context = make_context(1);
  EXPECT_ANY_THROW(Buffer(context, std::numeric_limits<std::size_t>::max()));
}

TEST(Errors, Context) {
  ContextOptions options;
  options.threads = -1;
  expect_error<value_error>([&] { Context context(options); }, {"threads", "-1"});
  options.threads = 100000;
  expect_error<value_error>([&] { Context context(options); },
                            {"threads: expected at most 4096, got 100000"});
  options.threads = 1;
  options.device.index = 3;
  expect_error<value_error>([&] { Context context(options); }, {"device: expected index 0", "3"});
  options.device = Device::cuda(4711);
  expect_error<cuda_error>([&] { Context context(options); }, {"cuda:4711"});
}

TEST(Errors, UnknownCell) {
  expect_error<value_error>([] { find_cell("MaxGRU"); }, {"MaxGRU", "MinGRU"});
}

}  // namespace
}  // namespace scanrnn::test
