// SPDX-License-Identifier: Apache-2.0
// Packed tokens of more than 2^31 elements: one stretch of steps again and again, so that the last
// of them is walked, forward and backward, as the first one is.
#include "support/conform.h"
#include "support/repeated.h"

namespace scanrnn::test {
namespace {

// A sequence is so many stretches, and all but the first of them begin with a reset. States at the
// beginning are zero, and so are the cotangents of those at the end.
struct PackedCall {
  const Repeated& repeated;
  const Layer& layer;
  const dispatch::Plan& plan;
  const std::int64_t stretches;
  const Case& one = repeated.few;
  Context& context = repeated.context;
  const Dtype dtype = one.layer.dtype;
  const std::int64_t hidden = one.layer.hidden_size, inputs = one.layer.input_size;
  const std::int64_t tokens = repeated.copies * one.steps;
  const std::int64_t sequences = repeated.copies / stretches;
  const Buffer workspace{context, layer.sizes(plan).workspace};
  const Buffer reserve{context, layer.sizes(plan).reserve};
  std::vector<Buffer> memory = {};
  std::vector<Uploaded> told = {};
  ForwardArgs forward = {};
  BackwardArgs backward = {};

  TensorView viewed(Buffer buffer, std::initializer_list<std::int64_t> sizes) {
    memory.push_back(std::move(buffer));
    return TensorView::of(memory.back().data(), dtype, sizes, test_device());
  }
  TensorView input(const Values& values, std::int64_t width) {
    return viewed(repeated.place(values, 1, one.steps * width), {tokens, width});
  }
  TensorView output(std::int64_t rows, std::int64_t width) {
    Buffer buffer(context, static_cast<std::size_t>(rows * width) * size_of(dtype));
    REQUIRE_CUDA(cudaMemsetAsync(buffer.data(), 0xFF, buffer.bytes(), nullptr));
    return viewed(std::move(buffer), {rows, width});
  }
  TensorView state_output() {
    TensorView out = output(sequences, hidden);
    return TensorView::of(out.data, dtype, {1, sequences, hidden}, test_device());
  }
  Ragged ragged() {
    const std::int64_t length = stretches * one.steps;
    std::vector<std::int64_t> ends;
    for (std::int64_t i = 0; i <= sequences; ++i) ends.push_back(i * length);
    told.emplace_back(context, TensorView::of(ends.data(), Dtype::int64, {sequences + 1}));
    Ragged out;
    out.cu_seqlens = told.back().view();
    if (stretches == 1) return out;
    std::vector<std::uint8_t> reset(static_cast<std::size_t>(tokens), 0);
    for (std::int64_t t = 0; t < tokens; t += one.steps) {
      reset[static_cast<std::size_t>(t)] = t % length != 0;
    }
    told.emplace_back(context, TensorView::of(reset.data(), Dtype::boolean, {tokens}));
    out.reset = told.back().view();
    return out;
  }

  void run_forward(const Data& data) {
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      Tensor parameter(dtype, layer.parameters()[i].sizes, data.params[i]);
      told.emplace_back(context, parameter.view());
      forward.params.push_back(told.back().view());
    }
    forward.x = input(data.x, inputs);
    forward.y = output(tokens, hidden);
    forward.hn.h = state_output();
    forward.ragged = ragged();
    forward.workspace = workspace.span();
    forward.reserve = reserve.span();
    layer.forward(context, plan, forward);
  }
  void run_backward(const Data& data) {
    backward.params = forward.params;
    for (const TensorView& parameter : forward.params) {
      const std::int64_t count = static_cast<std::int64_t>(Training::bytes_of(parameter)) /
                                 static_cast<std::int64_t>(size_of(dtype));
      TensorView gradient = parameter;
      gradient.data = output(1, count).data;
      backward.dparams.push_back(gradient);
    }
    backward.x = forward.x;
    backward.y = forward.y;
    backward.dy = input(data.dy, hidden);
    backward.dx = output(tokens, inputs);
    backward.dh0.h = state_output();
    backward.ragged = forward.ragged;
    backward.workspace = workspace.span();
    backward.reserve = reserve.span();
    layer.backward(context, plan, backward);
  }

  // Rows from one on, of a tensor with rows of `width`.
  Values rows_of(const TensorView& view, std::int64_t first, std::int64_t count,
                 std::int64_t width) const {
    const std::size_t row = static_cast<std::size_t>(width) * size_of(dtype);
    const std::size_t all = row * static_cast<std::size_t>(count);
    return fetch(view.data, all, row * static_cast<std::size_t>(first), all, 1, dtype);
  }
  Result result(std::int64_t stretch) const {
    Result out;
    out.y = rows_of(forward.y, stretch * one.steps, one.steps, hidden);
    out.hn = rows_of(forward.hn.h, stretch / stretches, 1, hidden);
    if (!backward.dx) return out;
    out.dx = rows_of(backward.dx, stretch * one.steps, one.steps, inputs);
    out.dh0 = rows_of(backward.dh0.h, stretch / stretches, 1, hidden);
    for (const TensorView& view : backward.dparams) {
      const std::size_t all = Training::bytes_of(view);
      out.dparams.push_back(fetch(view.data, all, 0, all, 1, dtype));
    }
    return out;
  }
};

class CudaLargePackedTest : public CudaLargeTest {
 protected:
  static void check(Mode mode, std::int64_t stretches) {
    Case one;
    one.layer.input_size = 8;
    one.layer.hidden_size = 512;
    one.layer.dtype = Dtype::bfloat16;
    one.steps = 61;
    one.batch = 1;
    one.h0 = false;
    const std::int64_t elements = one.steps * one.layer.hidden_size;
    const std::int64_t sequences = kMany / (stretches * elements) + 1;
    const std::int64_t copies = sequences * stretches, tokens = copies * one.steps;
    const bool training = mode == Mode::training;
    Random random(93);
    Data data = random_data(one, random);
    data.dhn.assign(data.dhn.size(), 0);
    oracle::Answer want = oracle::run(one, data, training);
    for (auto* gradients : {&want.dparams, &want.terms.dparams}) {
      for (Values& values : *gradients) {
        for (double& value : values) value *= static_cast<double>(copies);
      }
    }

    Context context = make_context(1);
    const Layer layer(one.layer);
    const auto plan =
        layer.plan(context, BatchShape{tokens, sequences, dispatch::Batch::packed}, mode);
    const Sizes bytes = layer.sizes(plan);
    const std::size_t outputs =
        static_cast<std::size_t>(copies * elements) * size_of(one.layer.dtype);
    if (lacks(bytes.workspace + bytes.reserve + (training ? 2 : 1) * outputs +
              (std::size_t{4} << 30))) {
      SCANRNN_LACKS_GPUS(1, "not enough memory");
    }
    const Repeated repeated{one, copies, context};
    PackedCall call{repeated, layer, plan, stretches};
    call.run_forward(data);
    if (training) call.run_backward(data);

    // The first, one in the middle and the last, which passes 2^31 elements.
    for (const std::int64_t stretch : {std::int64_t{0}, copies / 2, copies - 1}) {
      const std::string what = "stretch " + std::to_string(stretch) + ": ";
      const Result got = call.result(stretch);
      expect_forward(one, got, want, what);
      EXPECT_EQ(got.hn, Values(got.y.end() - one.layer.hidden_size, got.y.end())) << what;
      // Tensor cores cut off what a float32 sum has no bits for, each time they add 16 products.
      const double cut_off = static_cast<double>(tokens) / 16 * 0x1p-24;
      if (training) expect_backward(one, got, want, what, cut_off);
      if (HasFailure()) return;
    }
  }
};

TEST_F(CudaLargePackedTest, EveryPackedSequenceIsTheSame) { check(Mode::inference, 1); }

TEST_F(CudaLargePackedTest, EveryStretchBetweenResetsIsTheSame) { check(Mode::training, 2); }

}  // namespace
}  // namespace scanrnn::test
