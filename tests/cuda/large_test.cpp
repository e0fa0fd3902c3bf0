// SPDX-License-Identifier: Apache-2.0
// Tensors of more than 2^31 elements: a batch that repeats a few sequences, so that the oracle
// needs to walk these alone and every copy of them must have the same result.
#include "support/cases.h"
#include "support/conform.h"
#include "support/repeated.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

// Forward and backward of a layer over a batch of copies, all that they read and write on the
// device.
struct LargeCall {
  const Repeated& repeated;
  const Layer& layer;
  const Sizes bytes;
  const Case& few = repeated.few;
  Context& context = repeated.context;
  const std::int64_t batch = few.batch * repeated.copies;
  const std::int64_t hidden = few.layer.hidden_size;
  const Dtype dtype = few.layer.dtype;
  const Buffer workspace{context, bytes.workspace}, reserve{context, bytes.reserve};
  std::vector<Buffer> memory = {};
  ForwardArgs forward = {};
  BackwardArgs backward = {};

  TensorView viewed(Buffer buffer, const std::vector<std::int64_t>& sizes) {
    memory.push_back(std::move(buffer));
    TensorView out;
    out.dtype = dtype;
    out.device = test_device();
    out.rank = static_cast<int>(sizes.size());
    std::int64_t stride = 1;
    for (std::size_t axis = sizes.size(); axis-- > 0; stride *= sizes[axis]) {
      out.sizes[axis] = sizes[axis];
      out.strides[axis] = stride;
    }
    out.data = memory.back().data();
    return out;
  }
  TensorView input(const Values& values, std::int64_t outer, std::int64_t width) {
    return viewed(repeated.place(values, outer, width), {outer, batch, width});
  }
  TensorView output(const std::vector<std::int64_t>& sizes) {
    std::size_t count = size_of(dtype);
    for (std::int64_t size : sizes) count *= static_cast<std::size_t>(size);
    Buffer buffer(context, count);
    REQUIRE_CUDA(cudaMemsetAsync(buffer.data(), 0xFF, count, nullptr));
    return viewed(std::move(buffer), sizes);
  }
  State state(const Values& h, const MoreValues& more) {
    State out{input(h, 1, hidden)};
    for (std::size_t i = 0; i < few.more_states(); ++i) {
      out.*kStateTensors[i + 1] = input(more[i], 1, hidden);
    }
    return out;
  }
  State state_output() {
    State out;
    for (std::size_t i = 0; i <= few.more_states(); ++i) {
      out.*kStateTensors[i] = output({1, batch, hidden});
    }
    return out;
  }

  void place(const Data& data) {
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      const auto& sizes = layer.parameters()[i].sizes;
      const auto bits = Tensor(dtype, sizes, data.params[i]).bits();
      Buffer parameter(context, bits.size());
      parameter.upload(bits.data(), bits.size());
      forward.params.push_back(viewed(std::move(parameter), sizes));
      backward.dparams.push_back(output(sizes));
    }
    forward.x = input(data.x, few.steps, few.layer.input_size);
    forward.h0 = state(data.h0, data.more0);
    forward.y = output({few.steps, batch, hidden});
    forward.hn = state_output();
    backward.params = forward.params;
    backward.x = forward.x;
    backward.h0 = forward.h0;
    backward.y = forward.y;
    backward.dy = input(data.dy, few.steps, hidden);
    backward.dhn = state(data.dhn, data.dmoren);
    backward.dx = output({few.steps, batch, few.layer.input_size});
    backward.dh0 = state_output();
    forward.workspace = backward.workspace = workspace.span();
    forward.reserve = backward.reserve = reserve.span();
  }
  Values fetched(const TensorView& view, std::int64_t copy) const {
    if (!view) return {};
    const std::size_t one = static_cast<std::size_t>(few.batch * view.sizes[2]) * size_of(dtype);
    return fetch(view.data, one * static_cast<std::size_t>(repeated.copies),
                 one * static_cast<std::size_t>(copy), one, view.sizes[0], dtype);
  }
  Result result(std::int64_t copy) const {
    Result out;
    out.y = fetched(forward.y, copy);
    out.hn = fetched(forward.hn.h, copy);
    out.dx = fetched(backward.dx, copy);
    out.dh0 = fetched(backward.dh0.h, copy);
    for (std::size_t i = 0; i < few.more_states(); ++i) {
      out.moren[i] = fetched(forward.hn.*kStateTensors[i + 1], copy);
      out.dmore0[i] = fetched(backward.dh0.*kStateTensors[i + 1], copy);
    }
    for (const TensorView& view : backward.dparams) {
      const std::size_t all = Training::bytes_of(view);
      out.dparams.push_back(fetch(view.data, all, 0, all, 1, dtype));
    }
    return out;
  }
};

class CudaLargeLayerTest : public CudaLargeTest, public testing::WithParamInterface<Cell> {};

TEST_P(CudaLargeLayerTest, EveryCopyOfASequenceIsTheSame) {
  Case few;
  few.layer.cell = GetParam();
  // Their oracle takes H times as long.
  const bool dense = is_dense(few.layer) || info(few.layer.cell).square;
  const std::int64_t copies = dense ? 84000 : 2731;
  few.layer.input_size = 8;
  few.layer.hidden_size = dense ? 128 : 512;
  fit(few.layer);
  few.layer.dtype = Dtype::bfloat16;
  few.steps = dense ? 67 : 515;
  few.batch = 3;
  const std::int64_t batch = few.batch * copies, hidden = few.layer.hidden_size;
  ASSERT_GT(few.steps * batch * hidden, kMany);
  Random random(91);
  const Data data = random_data(few, random);
  oracle::Answer want = oracle::run(few, data);
  for (auto* gradients : {&want.dparams, &want.terms.dparams}) {
    for (Values& values : *gradients) {
      for (double& value : values) value *= static_cast<double>(copies);
    }
  }

  Context context = make_context(1);
  const Layer layer(few.layer);
  const Repeated repeated{few, copies, context};
  for (const Way& way : ways(few.layer)) {
    SCOPED_TRACE(name(way));
    const auto plan =
        way.splits(layer.plan(context, few.steps, batch, Mode::training, way.strategy));
    const Sizes bytes = layer.sizes(plan);
    const auto outputs =
        static_cast<std::size_t>(few.steps * batch * hidden) * size_of(few.layer.dtype);
    if (lacks(bytes.workspace + bytes.reserve + 2 * outputs + (std::size_t{4} << 30))) {
      SCANRNN_LACKS_GPUS(1, "not enough memory");
    }
    LargeCall call{repeated, layer, bytes};
    call.place(data);
    layer.forward(context, plan, call.forward);
    layer.backward(context, plan, call.backward);

    // The first, one in the middle and the last: these pass 2^31 elements in the last steps.
    for (std::int64_t copy : {std::int64_t{0}, copies / 2, copies - 1}) {
      // Tensor cores cut off what a float32 sum has no bits for, each time they add 16 products.
      const double cut_off = static_cast<double>(few.steps * batch) / 16 * 0x1p-24;
      expect_conforms(few, call.result(copy), want, "copy " + std::to_string(copy) + ": ", cut_off);
      if (HasFailure()) return;
    }
  }
}

std::vector<Cell> all_cells() {
  std::vector<Cell> out;
  for (const CellInfo& cell : cells()) out.push_back(cell.cell);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Cell, CudaLargeLayerTest, testing::ValuesIn(all_cells()),
                         [](const auto& test) { return scanrnn::info(test.param).name; });

// [T,N] by repeating a few columns.
TEST_F(CudaLargeTest, EveryCopyOfARowIsTheSame) {
  constexpr std::int64_t kSteps = 40003, kRows = 16, kCopies = 3357, kAll = kRows * kCopies;
  static_assert(kSteps * kAll > kMany);
  const std::size_t all_bytes = static_cast<std::size_t>(kSteps * kAll) * sizeof(float);
  if (lacks(3 * all_bytes + (std::size_t{4} << 30))) SCANRNN_LACKS_GPUS(1, "not enough memory");
  Random random(92);
  Values a = random.uniform(kSteps * kRows, 0.9, 1), b = random.uniform(kSteps * kRows, -1, 1);
  for (Values* values : {&a, &b}) {
    for (double& value : *values) value = rounded(value, Dtype::float32);
  }
  Values want(a.size());
  for (std::int64_t row = 0; row < kRows; ++row) {
    long double h = 0;
    for (std::int64_t t = 0; t < kSteps; ++t) {
      const auto at = static_cast<std::size_t>(t * kRows + row);
      h = a[at] * h + b[at];
      want[at] = static_cast<double>(h);
    }
  }
  Context context = make_context(1);
  Case few;
  few.layer.dtype = Dtype::float32;
  few.batch = kRows;
  const Repeated repeated{few, kCopies, context};
  const Buffer a_all = repeated.place(a, kSteps, 1), b_all = repeated.place(b, kSteps, 1);
  const Buffer h(context, all_bytes);
  constexpr std::size_t kOne = kRows * sizeof(float);
  const auto copy_of = [&](const Buffer& all, std::int64_t copy) {
    return fetch(all.data(), kOne * kCopies, kOne * static_cast<std::size_t>(copy), kOne, kSteps,
                 Dtype::float32);
  };
  ASSERT_TRUE(same_bits("a", copy_of(a_all, kCopies - 1), a));
  for (const Way& way : scan_ways()) {
    if (way == Strategy::direct) continue;
    SCOPED_TRACE(name(way));
    const auto plan =
        way.splits(linear_scan_plan(context, {kSteps, 1, kAll, Dtype::float32}, way.strategy));
    const Buffer workspace(context, linear_scan_workspace(plan));
    REQUIRE_CUDA(cudaMemsetAsync(h.data(), 0xFF, h.bytes(), nullptr));
    ScanArgs args;
    const auto view = [&](const Buffer& buffer) {
      return TensorView::of(buffer.data(), Dtype::float32, {kSteps, kAll}, test_device());
    };
    args.a = view(a_all), args.b = view(b_all), args.h = view(h);
    args.workspace = workspace.span();
    linear_scan(context, plan, args);
    for (std::int64_t copy : {std::int64_t{0}, kCopies / 2, kCopies - 1}) {
      EXPECT_TRUE(close("h", copy_of(h, copy), want, forward_tolerance(Dtype::float32, kSteps)))
          << "copy " << copy;
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
