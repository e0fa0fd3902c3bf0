// SPDX-License-Identifier: Apache-2.0
// What the library says of itself: cells, parameters, plans, devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>

#include "support/cases.h"
#include "support/library.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

// docs/maths.md's orders of row blocks; a user's checkpoint hangs on them.
TEST(Registry, RowOrders) {
  EXPECT_EQ(find_cell("MinGRU").row_order, (std::vector<std::string>{"z", "h"}));
  EXPECT_EQ(find_cell("MinLSTM").row_order, (std::vector<std::string>{"f", "i", "h"}));
  EXPECT_EQ(find_cell("SRU").row_order, (std::vector<std::string>{"x", "f", "r"}));
  EXPECT_EQ(find_cell("QRNN").row_order, (std::vector<std::string>{"z", "f", "o"}));
  EXPECT_EQ(find_cell("RGLRU").row_order, (std::vector<std::string>{"r", "i"}));
  EXPECT_EQ(find_cell("PeepholeSRU").row_order, find_cell("SRU").row_order);
  EXPECT_EQ(find_cell("IndRNN").row_order, (std::vector<std::string>{"h"}));
  EXPECT_EQ(find_cell("RNN").row_order, (std::vector<std::string>{"h"}));
  EXPECT_EQ(find_cell("LSTM").row_order, (std::vector<std::string>{"i", "f", "g", "o"}));
  EXPECT_EQ(find_cell("GRU").row_order, (std::vector<std::string>{"r", "z", "n"}));
  EXPECT_EQ(find_cell("PeepholeLSTM").row_order, find_cell("LSTM").row_order);
  EXPECT_EQ(find_cell("SLSTM").row_order, (std::vector<std::string>{"i", "f", "z", "o"}));
}

TEST(Registry, CellsAreWhatTheySay) {
  using Kind = dispatch::Recurrence;
  struct Said {
    std::string name;
    Kind recurrence;
    int gates, preactivations, states;
    bool readout, highway;
    std::string option, first;  // what picks a variant, and the default
    int vectors = 0;
  };
  const std::vector<Said> said{
      {"MinGRU", Kind::linear, 2, 2, 1, false, false, "candidate", "g"},
      {"MinLSTM", Kind::linear, 3, 3, 1, false, false, "candidate", "g"},
      {"SRU", Kind::linear, 3, 3, 1, true, true, "activation", "identity"},
      {"QRNN", Kind::linear, 3, 3, 1, true, false, "", ""},
      {"RGLRU", Kind::linear, 2, 2, 1, false, true, "", "", 1},
      {"PeepholeSRU", Kind::diagonal, 3, 3, 1, true, true, "activation", "identity", 2},
      {"IndRNN", Kind::diagonal, 1, 1, 1, false, false, "nonlinearity", "relu", 1},
      {"RNN", Kind::dense, 1, 1, 1, false, false, "nonlinearity", "tanh"},
      {"LSTM", Kind::dense, 4, 4, 2, false, false, "", ""},
      {"GRU", Kind::dense, 3, 4, 1, false, false, "", ""},
      {"PeepholeLSTM", Kind::dense, 4, 4, 2, false, false, "", "", 3},
      {"SLSTM", Kind::dense, 4, 4, 4, false, false, "", ""}};
  ASSERT_EQ(cells().size(), said.size());
  EXPECT_EQ(static_cast<int>(cells().size()), kCellCount);
  for (std::size_t i = 0; i < cells().size(); ++i) {
    const CellInfo& cell = cells()[i];
    EXPECT_EQ(static_cast<std::size_t>(cell.cell), i) << "Cell is an index into cells()";
    EXPECT_EQ(&info(cell.cell), &cell);
    EXPECT_EQ(&find_cell(cell.name), &cell);
    EXPECT_EQ(cell.name, said[i].name);
    EXPECT_EQ(cell.recurrence, said[i].recurrence);
    EXPECT_EQ(cell.gates, said[i].gates);
    EXPECT_EQ(cell.preactivations, said[i].preactivations);
    EXPECT_EQ(cell.states, said[i].states);
    std::vector<double> fresh(static_cast<std::size_t>(cell.states), 0.0);
    if (cell.name == "SLSTM") fresh[3] = -std::numeric_limits<double>::infinity();
    EXPECT_EQ(cell.fresh, fresh);
    EXPECT_EQ(cell.readout, said[i].readout);
    EXPECT_EQ(cell.highway, said[i].highway);
    EXPECT_EQ(cell.square, cell.name == "RGLRU");
    EXPECT_EQ(cell.vectors, said[i].vectors);
    EXPECT_EQ(cell.vectors_name.empty(), cell.vectors == 0);
    const bool peephole = cell.name.rfind("Peephole", 0) == 0;
    EXPECT_EQ(cell.base, peephole ? cell.name.substr(8) : "");
    EXPECT_EQ(cell.option, cell.base.empty() ? "" : "peephole");
    EXPECT_EQ(cell.variant_option, said[i].option);
    EXPECT_EQ(cell.variants.at(0), said[i].first);
    EXPECT_EQ(cell.variants.size() == 1, said[i].option.empty());
    EXPECT_EQ(static_cast<std::size_t>(cell.gates), cell.row_order.size());
    EXPECT_LE(cell.bias_gates, cell.gates);
  }
}

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
Shapes parameters(const LayerOptions& options) {
  Shapes out;
  const Layer layer(options);
  for (const ParameterInfo& parameter : layer.parameters()) {
    out.emplace_back(parameter.name, parameter.sizes);
  }
  return out;
}

TEST(Registry, ParametersAreTorchs) {
  LayerOptions options;
  options.input_size = 5;
  options.hidden_size = 7;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {14, 5}}, {"bias_ih_l0", {14}}}));
  options.cell = Cell::MinLSTM;
  options.bias = false;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {21, 5}}}));
  options.bias = true;
  options.num_layers = 2;
  options.bidirectional = true;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {21, 5}},
                                         {"bias_ih_l0", {21}},
                                         {"weight_ih_l0_reverse", {21, 5}},
                                         {"bias_ih_l0_reverse", {21}},
                                         {"weight_ih_l1", {21, 14}},
                                         {"bias_ih_l1", {21}},
                                         {"weight_ih_l1_reverse", {21, 14}},
                                         {"bias_ih_l1_reverse", {21}}}));
}

// SRU has a fourth block, the highway projection, exactly when a layer's input is not as wide as H.
TEST(Registry, ParametersOfSru) {
  LayerOptions options;
  options.cell = Cell::SRU;
  options.input_size = 5;
  options.hidden_size = 7;
  options.num_layers = 2;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {28, 5}},
                                         {"bias_ih_l0", {14}},
                                         {"weight_ih_l1", {21, 7}},
                                         {"bias_ih_l1", {14}}}));
  options.input_size = 7;
  EXPECT_EQ(parameters(options)[0].second, (std::vector<std::int64_t>{21, 7}));
  options.bidirectional = true;
  EXPECT_EQ(parameters(options)[4].second, (std::vector<std::int64_t>{28, 14}));
}

// Those of torch.nn.LSTM and torch.nn.GRU, in their order.
TEST(Registry, ParametersOfLstmAndGru) {
  LayerOptions options;
  options.cell = Cell::LSTM;
  options.input_size = 5;
  options.hidden_size = 7;
  options.num_layers = 2;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {28, 5}},
                                         {"weight_hh_l0", {28, 7}},
                                         {"bias_ih_l0", {28}},
                                         {"bias_hh_l0", {28}},
                                         {"weight_ih_l1", {28, 7}},
                                         {"weight_hh_l1", {28, 7}},
                                         {"bias_ih_l1", {28}},
                                         {"bias_hh_l1", {28}}}));
  options.cell = Cell::GRU;
  options.num_layers = 1;
  options.bias = false;
  options.bidirectional = true;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {21, 5}},
                                         {"weight_hh_l0", {21, 7}},
                                         {"weight_ih_l0_reverse", {21, 5}},
                                         {"weight_hh_l0_reverse", {21, 7}}}));
}

// A vector comes after the weights.
TEST(Registry, ParametersOfCellsWithVectors) {
  LayerOptions options;
  options.input_size = options.hidden_size = 7;
  options.cell = Cell::RGLRU;
  EXPECT_EQ(parameters(options),
            (Shapes{{"weight_ih_l0", {14, 7}}, {"weight_a_l0", {7}}, {"bias_ih_l0", {14}}}));
  options.cell = Cell::IndRNN;
  options.bidirectional = true;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {7, 7}},
                                         {"weight_hh_l0", {7}},
                                         {"bias_ih_l0", {7}},
                                         {"weight_ih_l0_reverse", {7, 7}},
                                         {"weight_hh_l0_reverse", {7}},
                                         {"bias_ih_l0_reverse", {7}}}));
  options.cell = Cell::PeepholeSRU;
  options.bidirectional = options.bias = false;
  options.input_size = 5;
  EXPECT_EQ(parameters(options), (Shapes{{"weight_ih_l0", {28, 5}}, {"weight_ch_l0", {14}}}));
}

TEST(Registry, PlansSayWhatTheyAreFor) {
  const Context context = make_context(3);
  for (const LayerOptions& variant : all_variants()) {
    LayerOptions options = variant;
    options.input_size = 5;
    options.hidden_size = 7;
    options.dtype = Dtype::bfloat16;
    options.domain = Domain::linear;
    fit(options);
    const Layer layer(options);
    const auto plan = layer.plan(context, 100, 3, Mode::training);
    EXPECT_EQ(plan.problem.steps, 100);
    EXPECT_EQ(plan.problem.batch, 3);
    EXPECT_EQ(plan.problem.input_size, options.input_size);
    EXPECT_EQ(plan.problem.hidden_size, 7);
    EXPECT_EQ(plan.problem.gates, info(options.cell).gates);
    EXPECT_EQ(plan.problem.storage_bytes, 2);
    EXPECT_EQ(plan.problem.compute_bytes, 4);
    EXPECT_TRUE(plan.problem.training);
    EXPECT_FALSE(plan.problem.log_domain);
    for (const Way& way : ways(options)) {
      EXPECT_EQ(layer.plan(context, 100, 3, Mode::training, way.strategy).strategy, way.strategy);
    }
  }
}

// A user's own profile decides instead.
TEST(Registry, ProfileOfTheContextDecides) {
  Context context = make_context(1);
  LayerOptions options;
  options.input_size = options.hidden_size = 4;
  const Layer layer(options);
  using dispatch::Strategy;
  dispatch::Profile profile{"mine", "a test", 2, {}, nullptr};
  profile.rules[0] = dispatch::everywhere(Strategy::parallel_scan, Strategy::direct);
  profile.rules[0].at_most[dispatch::index_of(dispatch::Feature::training)] = 0;
  profile.rules[1] = dispatch::everywhere(Strategy::fused_sequential, Strategy::direct);
  context.set_profile(profile);
  EXPECT_STREQ(context.profile().name, "mine");
  const auto inference = layer.plan(context, 2, 1, Mode::inference);
  EXPECT_EQ(inference.strategy, dispatch::Strategy::parallel_scan);
  EXPECT_STREQ(inference.profile, "mine");
  EXPECT_EQ(layer.plan(context, 2, 1, Mode::training).strategy,
            dispatch::Strategy::fused_sequential);
}

TEST(Registry, ProfilesThatCannotBe) {
  Context context = make_context(1);
  const dispatch::Profile good{"mine", "a test", 1, {}, nullptr};
  const auto said = [&](auto change) {
    dispatch::Profile profile = good;
    profile.rules[0] = dispatch::everywhere(dispatch::Strategy::direct, dispatch::Strategy::direct);
    change(profile);
    const auto shared = std::make_shared<const dispatch::Profile>(profile);
    const std::string out = message([&] { context.set_profile(profile); });
    EXPECT_EQ(message([&] { context.set_profile(shared); }), out);
    return out;
  };
  const dispatch::Profile* const before = &context.profile();
  EXPECT_EQ(said([](auto& p) { p.count = 1000000; }),
            "profile: expected 0 to 96 rules, got 1000000");
  EXPECT_EQ(said([](auto& p) { p.count = -1; }), "profile: expected 0 to 96 rules, got -1");
  EXPECT_EQ(said([](auto& p) { p.rules[0].strategy = dispatch::Strategy::automatic; }),
            "profile: expected a strategy in each rule, got 0 in rule 0");
  EXPECT_EQ(said([](auto& p) { std::fill(std::begin(p.name), std::end(p.name), 'a'); }),
            "profile: expected name and origin that end with a 0, got none");
  EXPECT_EQ(&context.profile(), before);
  EXPECT_EQ(said([](auto&) {}), "nothing was thrown");
}

// Contexts that are given one profile read that one, and keep it for as long as they need it.
TEST(Registry, ContextsShareAProfile) {
  using dispatch::Profile;
  Context one = make_context(1), two = make_context(1);
  const Profile* built_in = &one.profile();
  EXPECT_EQ(&two.profile(), built_in) << "a built-in one is not copied either";
  auto profile = std::make_shared<const Profile>(Profile{"shared", "a test", 0, {}, nullptr});
  const std::weak_ptr<const Profile> seen = profile;
  one.set_profile(profile);
  two.set_profile(profile);
  EXPECT_EQ(&one.profile(), profile.get());
  EXPECT_EQ(&two.profile(), profile.get());
  profile.reset();
  EXPECT_STREQ(two.profile().name, "shared");
  one.set_profile(*built_in);
  two.set_profile(*built_in);
  EXPECT_TRUE(seen.expired());
  EXPECT_THROW(one.set_profile(std::shared_ptr<const Profile>()), value_error);
  EXPECT_STREQ(one.profile().name, built_in->name) << "an error changes nothing";
}

TEST(Registry, ContextKeepsItsThreads) {
  if (on_cuda()) GTEST_SKIP() << "the units of a GPU are its own";
  EXPECT_EQ(make_context(3).limits().units, 3);
  EXPECT_GE(make_context(0).limits().units, 1);
  Context one = make_context(1);
  Context moved = std::move(one);
  EXPECT_EQ(moved.limits().units, 1);
  EXPECT_EQ(moved.options().threads, 1);
}

TEST(Registry, TheCpuIsTheFirstDevice) {
  const auto all = devices();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].device, Device::cpu());
  EXPECT_FALSE(all[0].name.empty());
  EXPECT_GE(all[0].units, 1);
  EXPECT_GT(all[0].memory, 1 << 20);
  EXPECT_EQ(cuda_available(), all.size() > 1);
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i].device, Device::cuda(static_cast<int>(i) - 1));
  }
}

TEST(Registry, BuildInfoIsKeysAndValues) {
  std::istringstream lines(build_info());
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_NE(line.find(": "), std::string::npos) << line;
    all += line + "\n";
  }
  for (const char* key : {"version: ", "compiler: ", "blas: ", "instruction sets: ", "cuda: "}) {
    EXPECT_NE(all.find(key), std::string::npos) << "no " << key << " in\n" << all;
  }
}

TEST(Registry, NamesOfDtypesAndDevices) {
  EXPECT_STREQ(name(Dtype::float64), "float64");
  EXPECT_STREQ(name(Dtype::float32), "float32");
  EXPECT_STREQ(name(Dtype::bfloat16), "bfloat16");
  EXPECT_STREQ(name(Dtype::float16), "float16");
  EXPECT_EQ(name(Device::cpu()), "cpu");
  EXPECT_EQ(name(Device::cuda(2)), "cuda:2");
}

TEST(Registry, ContiguousViews) {
  const float data[24] = {};
  const TensorView view = TensorView::of(data, Dtype::float32, {2, 3, 4});
  EXPECT_EQ(view.strides, (std::array<std::int64_t, 3>{12, 4, 1}));
  EXPECT_EQ(view.shape(), "(2, 3, 4)");
  EXPECT_EQ(TensorView::of(data, Dtype::float32, {5}).shape(), "(5,)");
  EXPECT_TRUE(view);
  EXPECT_FALSE(TensorView());
}

TEST(Registry, OptionsOfACellByName) {
  for (const CellInfo& cell : cells()) {
    LayerOptions options;
    options.cell = cell.cell;
    options.input_size = options.hidden_size = 6;
    for (const OwnOption& option : own_options(cell.cell)) {
      const bool whole = option.kind != OwnOption::Kind::number;
      LayerOptions changed = options;
      set_option(changed, option.name, option.value);
      EXPECT_NO_THROW(Layer{changed}) << cell.name << ' ' << option.name;
      const bool flag = option.kind == OwnOption::Kind::flag;
      const double other = flag ? 1 - option.value : option.value + (whole ? 1 : 0.25);
      set_option(changed, option.name, other);
      if (option.name == "num_heads") set_option(changed, option.name, 3);
      if (option.name == "layer_norm" && cell.option == "peephole") continue;  // an error
      EXPECT_NO_THROW(Layer{changed}) << cell.name << ' ' << option.name;
      if (whole) {
        EXPECT_THROW(set_option(changed, option.name, 0.5), value_error) << option.name;
      }
    }
  }
  LayerOptions options;
  EXPECT_THROW(set_option(options, "none", 1), value_error);
  EXPECT_THROW(set_option(options, "rescale", 2), value_error);
}

}  // namespace
}  // namespace scanrnn::test
