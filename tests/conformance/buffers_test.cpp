// SPDX-License-Identifier: Apache-2.0
// The overloads that allocate give what the others give, to the bit, in memory of their own; and
// Buffer is memory on the device.
#include <gtest/gtest.h>

#include <utility>

#include "support/cases.h"
#include "support/compare.h"
#include "support/library.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

Case buffers_case(const LayerOptions& options, bool batch_first) {
  Case c;
  c.layer = options;
  c.layer.input_size = 6;
  c.layer.hidden_size = 10;
  c.layer.num_layers = 2;
  c.layer.bidirectional = true;
  c.layer.dropout = 0.25;
  c.layer.batch_first = batch_first;
  fit(c.layer);
  c.steps = 29;
  c.batch = 3;
  c.threads = 2;
  return c;
}

// The bytes of a contiguous tensor that lies in `buffer`.
std::vector<std::uint8_t> bits_of(const Buffer& buffer, const TensorView& view) {
  std::size_t bytes = size_of(view.dtype);
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const auto at = static_cast<std::size_t>(axis);
    EXPECT_EQ(view.strides[at] * static_cast<std::int64_t>(size_of(view.dtype)),
              static_cast<std::int64_t>(bytes));
    bytes *= static_cast<std::size_t>(view.sizes[at]);
  }
  std::vector<std::uint8_t> out(bytes);
  const auto first = static_cast<char*>(view.data) - static_cast<char*>(buffer.data());
  buffer.download(out.data(), bytes, static_cast<std::size_t>(first));
  return out;
}

TEST(Buffers, TheAllocatingOverloadsAreTheSame) {
  constexpr std::uint64_t kSeed = 5;
  std::vector<LayerOptions> layers = few_variants();
  layers.emplace_back();
  layers.back().cell = Cell::LSTM;
  layers.back().proj_size = 3;
  for (const LayerOptions& options : layers) {
    for (bool batch_first : {false, true}) {
      const Case c = buffers_case(options, batch_first);
      SCOPED_TRACE(text(c));
      Random random(95);
      const Data data = random_data(c, random);
      Context context = make_context(c.threads);
      Buffers buffers(c, data);
      buffers.forward(context, Mode::training, kSeed);
      buffers.backward(context, kSeed);

      const Layer layer(c.layer);
      Mirror mirror(context);
      const BackwardArgs in = buffers.backward_args(mirror);
      ForwardResult forward = layer.forward(context, in.params, in.x, in.h0, Mode::training, kSeed);
      EXPECT_TRUE(same_bits("y", bits_of(forward.memory, forward.y), buffers.y.bits()));
      EXPECT_TRUE(same_bits("h_n", bits_of(forward.memory, forward.hn.h), buffers.hn.bits()));
      for (std::size_t i = 0; i < c.more_states(); ++i) {
        EXPECT_TRUE(same_bits(letter(i + 1) + "_n",
                              bits_of(forward.memory, forward.hn.*kStateTensors[i + 1]),
                              buffers.moren[i].bits()));
      }
      const ForwardResult moved = std::move(forward);  // the views go with the memory
      const BackwardResult backward =
          layer.backward(context, moved, in.params, in.x, in.h0, in.dy, in.dhn);
      EXPECT_TRUE(same_bits("dx", bits_of(backward.memory, backward.dx), buffers.dx.bits()));
      EXPECT_TRUE(same_bits("dh_0", bits_of(backward.memory, backward.dh0.h), buffers.dh0.bits()));
      for (std::size_t i = 0; i < c.more_states(); ++i) {
        EXPECT_TRUE(same_bits("d" + letter(i + 1) + "_0",
                              bits_of(backward.memory, backward.dh0.*kStateTensors[i + 1]),
                              buffers.dmore0[i].bits()));
      }
      ASSERT_EQ(backward.dparams.size(), buffers.dparams.size());
      for (std::size_t i = 0; i < backward.dparams.size(); ++i) {
        EXPECT_TRUE(same_bits("d" + layer.parameters()[i].name,
                              bits_of(backward.memory, backward.dparams[i]),
                              buffers.dparams[i].bits()));
      }
      const ForwardResult inference = layer.forward(context, in.params, in.x, in.h0);
      EXPECT_EQ(inference.reserve.bytes(), 0u);
      buffers.forward(context, Mode::inference);
      EXPECT_TRUE(same_bits("y", bits_of(inference.memory, inference.y), buffers.y.bits()));
    }
  }
}

// An x of another size is refused before there is memory of that size.
TEST(Buffers, BackwardIsOfTheForwardPass) {
  const Case c = buffers_case({}, false);
  Random random(98);
  Context context = make_context(c.threads);
  Buffers buffers(c, random_data(c, random));
  Mirror mirror(context);
  const BackwardArgs in = buffers.backward_args(mirror);
  const Layer layer(c.layer);
  const ForwardResult forward = layer.forward(context, in.params, in.x, in.h0, Mode::training);
  TensorView x = in.x;
  x.sizes = {1 << 30, 1 << 30, 6};
  const std::string said = message<value_error>(
      [&] { layer.backward(context, forward, in.params, x, in.h0, in.dy, in.dhn); });
  EXPECT_EQ(said.find("x: expected shape (29, 3, 6)"), 0u) << said;
}

// A layer that was moved from is the layer that it was.
TEST(Buffers, AMovedLayerHasItsParameters) {
  Layer layer(buffers_case({}, false).layer);
  const Layer other(std::move(layer));
  EXPECT_EQ(layer.parameters().size(), other.parameters().size());
  EXPECT_EQ(other.parameters().size(), 8u);
}

// Two layers work at the same time in other memory than two directions.
TEST(Buffers, APlanOfAnotherStackIsNone) {
  LayerOptions options;
  options.cell = Cell::LSTM;
  Case c = buffers_case(options, false);
  c.layer.num_layers = 1;
  Random random(97);
  const Data data = random_data(c, random);
  Context context = make_context(c.threads);
  Buffers buffers(c, data);
  Mirror mirror(context);
  const BackwardArgs in = buffers.backward_args(mirror);
  LayerOptions stack = c.layer;
  stack.bidirectional = false;
  stack.num_layers = 2;
  const dispatch::Plan other = Layer(stack).plan(context, c.steps, c.batch, Mode::training);
  const std::string said =
      message<value_error>([&] { Layer(c.layer).backward(context, other, in); });
  EXPECT_EQ(said.find("plan: it was made for another layer or device: "), 0u) << said;
}

TEST(Buffers, TheAllocatingOverloadsNameWhatIsWrong) {
  const Case c = buffers_case({}, false);
  Random random(96);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  const Layer layer(c.layer);
  Mirror mirror(context);
  const BackwardArgs in = buffers.backward_args(mirror);
  const auto message = [](auto&& call) { return test::message<value_error>(call); };
  TensorView x = in.x;
  x.rank = 2;
  EXPECT_EQ(message([&] { layer.forward(context, in.params, x); }),
            "x: expected 3 axes, got shape (29, 3)");
  const ForwardResult trained = layer.forward(context, in.params, in.x, in.h0, Mode::training);
  EXPECT_EQ(message([&] { layer.backward(context, trained, in.params, x, in.h0, in.dy); }),
            "x: expected shape (29, 3, 6) = (steps, batch, input_size), got (29, 3)");
  x = in.x;
  x.sizes[2] = 5;
  EXPECT_NE(message([&] { layer.forward(context, in.params, x); }).find("x: expected shape"),
            std::string::npos);
  const ForwardResult inference = layer.forward(context, in.params, in.x, in.h0);
  EXPECT_NE(message([&] {
              layer.backward(context, inference, in.params, in.x, in.h0, in.dy);
            }).find("training"),
            std::string::npos);
}

// More than the chunks that a copy goes through, and sizes around theirs.
TEST(Buffers, WhatGoesUpComesDown) {
  Context context = make_context(1);
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1,
                            8 * kMiB, 8 * kMiB + 1, 21 * kMiB + 7}) {
    Random random(bytes);
    std::vector<std::uint8_t> sent(bytes), got(bytes);
    for (std::uint8_t& byte : sent) byte = static_cast<std::uint8_t>(random.bits());
    Buffer buffer(context, bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
    buffer.upload(sent.data(), bytes);
    const std::vector<std::uint8_t> copy = sent;
    std::fill(sent.begin(), sent.end(), std::uint8_t{0});  // it may be used again
    buffer.download(got.data(), bytes);
    EXPECT_TRUE(got == copy) << bytes;
    EXPECT_THROW(buffer.upload(sent.data(), bytes + 1), value_error);
    EXPECT_THROW(buffer.upload(sent.data(), 0, bytes + 1), value_error);
    EXPECT_THROW(buffer.download(got.data(), ~std::size_t{0}, 1), value_error);
    const std::size_t third = bytes / 3;
    buffer.upload(sent.data(), third, third);  // zeros
    buffer.download(got.data(), bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(got[i], i / std::max<std::size_t>(third, 1) == 1 && third ? 0 : copy[i]) << i;
    }
    EXPECT_THROW(buffer.download(got.data(), bytes + 1), value_error);
  }
}

}  // namespace
}  // namespace scanrnn::test
