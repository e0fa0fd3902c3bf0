// SPDX-License-Identifier: Apache-2.0
// Tensors of more than 2^31 elements: a batch that repeats a few sequences, so that the oracle
// needs to walk these alone and every copy of them must have the same result.
#include "support/cases.h"
#include "support/conform.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

constexpr std::int64_t kMany = std::int64_t{1} << 31;

class CudaLargeTest : public CudaTest {
 protected:
  // True where the device has not so many bytes free.
  static bool lacks(std::size_t bytes) {
    std::size_t free = 0, total = 0;
    REQUIRE_CUDA(cudaMemGetInfo(&free, &total));
    return free < bytes;
  }
};

// `rows` rows of `from`, each `width` bytes and `spacing` apart, `copies` times behind each other.
void repeat(const Buffer& from, std::int64_t rows, std::size_t width, std::int64_t copies,
            void* to) {
  for (std::int64_t copy = 0; copy < copies; ++copy) {
    const std::size_t pitch = width * static_cast<std::size_t>(copies);
    REQUIRE_CUDA(cudaMemcpy2DAsync(static_cast<char*>(to) + static_cast<std::size_t>(copy) * width,
                                   pitch, from.data(), width, width, static_cast<std::size_t>(rows),
                                   cudaMemcpyDeviceToDevice, nullptr));
  }
}

// Rows `first` to `first + rows` of width bytes out of memory whose rows are `pitch` bytes apart.
Values fetch(const void* from, std::size_t pitch, std::size_t offset, std::size_t width,
             std::int64_t rows, Dtype dtype) {
  std::vector<std::uint8_t> bytes(width * static_cast<std::size_t>(rows));
  REQUIRE_CUDA(cudaMemcpy2D(bytes.data(), width, static_cast<const char*>(from) + offset, pitch,
                            width, static_cast<std::size_t>(rows), cudaMemcpyDeviceToHost));
  Values out;
  for (std::size_t at = 0; at < bytes.size(); at += size_of(dtype)) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, size_of(dtype));
    out.push_back(decode(bits, dtype));
  }
  return out;
}

// [T,B,.] with `few` sequences as the batch, repeated `copies` times: x, dy, h_0 and dh_n.
struct Repeated {
  const Case& few;
  std::int64_t copies;
  Context& context;

  Buffer place(const Values& values, std::int64_t outer, std::int64_t width) const {
    Tensor tensor(few.layer.dtype, {outer, few.batch * width}, values);
    const auto bytes = tensor.bits();
    Buffer once(context, bytes.size());
    once.upload(bytes.data(), bytes.size());
    Buffer out(context, bytes.size() * static_cast<std::size_t>(copies));
    repeat(once, outer, bytes.size() / static_cast<std::size_t>(outer), copies, out.data());
    return out;
  }
};

class CudaLargeLayerTest : public CudaLargeTest, public testing::WithParamInterface<Cell> {};

TEST_P(CudaLargeLayerTest, EveryCopyOfASequenceIsTheSame) {
  constexpr Dtype kDtype = Dtype::bfloat16;
  constexpr std::int64_t kCopies = 2731;
  Case few;
  few.layer.cell = GetParam();
  few.layer.input_size = 8;
  few.layer.hidden_size = 512;
  few.layer.dtype = kDtype;
  few.steps = 515;
  few.batch = 3;
  const std::int64_t batch = few.batch * kCopies, hidden = few.layer.hidden_size;
  ASSERT_GT(few.steps * batch * hidden, kMany);
  Random random(91);
  const Data data = random_data(few, random);
  const oracle::Answer want = oracle::run(few, data);

  Context context = make_context(1);
  const Layer layer(few.layer);
  const Repeated repeated{few, kCopies, context};
  for (Strategy strategy : dispatch::kLinearStrategies) {
    SCOPED_TRACE(name(strategy));
    const auto plan = layer.plan(context, few.steps, batch, Mode::training, strategy);
    const Sizes bytes = layer.sizes(plan);
    const auto outputs = static_cast<std::size_t>(few.steps * batch * hidden) * size_of(kDtype);
    if (lacks(bytes.workspace + bytes.reserve + 2 * outputs + (std::size_t{4} << 30))) {
      GTEST_SKIP() << "not enough memory";
    }
    const Buffer workspace(context, bytes.workspace), reserve(context, bytes.reserve);
    const Buffer x = repeated.place(data.x, few.steps, few.layer.input_size),
                 dy = repeated.place(data.dy, few.steps, hidden),
                 h0 = repeated.place(data.h0, 1, hidden), dhn = repeated.place(data.dhn, 1, hidden);
    const Buffer y(context, outputs), hn(context, h0.bytes()), dx(context, x.bytes()),
        dh0(context, h0.bytes());
    const auto view = [&](const Buffer& buffer, std::initializer_list<std::int64_t> sizes) {
      return TensorView::of(buffer.data(), kDtype, sizes, test_device());
    };
    std::vector<Buffer> params, dparams;
    ForwardArgs forward;
    BackwardArgs backward;
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      const auto& sizes = layer.parameters()[i].sizes;
      Tensor tensor(kDtype, sizes, data.params[i]);
      const auto bits = tensor.bits();
      params.emplace_back(context, bits.size()).upload(bits.data(), bits.size());
      dparams.emplace_back(context, bits.size());
      TensorView of = tensor.view();  // contiguous
      of.device = test_device();
      of.data = params.back().data();
      forward.params.push_back(of);
      of.data = dparams.back().data();
      backward.dparams.push_back(of);
    }
    forward.x = view(x, {few.steps, batch, few.layer.input_size});
    forward.h0.h = view(h0, {1, batch, hidden});
    forward.y = view(y, {few.steps, batch, hidden});
    forward.hn.h = view(hn, {1, batch, hidden});
    forward.workspace = workspace.span();
    forward.reserve = reserve.span();
    for (const Buffer* output : {&y, &hn, &dx, &dh0}) {
      REQUIRE_CUDA(cudaMemsetAsync(output->data(), 0xFF, output->bytes(), nullptr));
    }
    layer.forward(context, plan, forward);
    backward.params = forward.params;
    backward.x = forward.x;
    backward.h0 = forward.h0;
    backward.y = forward.y;
    backward.dy = view(dy, {few.steps, batch, hidden});
    backward.dhn.h = view(dhn, {1, batch, hidden});
    backward.dx = view(dx, {few.steps, batch, few.layer.input_size});
    backward.dh0.h = view(dh0, {1, batch, hidden});
    backward.workspace = workspace.span();
    backward.reserve = reserve.span();
    layer.backward(context, plan, backward);

    // The copies at both ends and around the middle; offsets pass 2^31 elements near the last ones
    // of the last step, and 2^31 bytes half way.
    for (std::int64_t copy : {std::int64_t{0}, kCopies / 2, kCopies - 1}) {
      const auto of = [&](const Buffer& buffer, std::int64_t rows, std::int64_t width) {
        const std::size_t one = static_cast<std::size_t>(few.batch * width) * size_of(kDtype);
        return fetch(buffer.data(), one * static_cast<std::size_t>(kCopies),
                     one * static_cast<std::size_t>(copy), one, rows, kDtype);
      };
      Result got;
      got.y = of(y, few.steps, hidden);
      got.hn = of(hn, 1, hidden);
      got.dx = of(dx, few.steps, few.layer.input_size);
      got.dh0 = of(dh0, 1, hidden);
      oracle::Answer expected = want;
      for (std::size_t i = 0; i < dparams.size(); ++i) {
        const auto count = static_cast<std::int64_t>(want.dparams[i].size());
        got.dparams.push_back(
            fetch(dparams[i].data(), dparams[i].bytes(), 0, dparams[i].bytes(), 1, kDtype));
        ASSERT_EQ(static_cast<std::int64_t>(got.dparams.back().size()), count);
        for (double& value : expected.dparams[i]) value *= kCopies;
        for (double& value : expected.terms.dparams[i]) value *= kCopies;
      }
      expect_conforms(few, got, expected, "copy " + std::to_string(copy) + ": ");
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
  if (lacks(3 * all_bytes + (std::size_t{4} << 30))) GTEST_SKIP() << "not enough memory";
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
  for (Strategy strategy : {Strategy::fused_sequential, Strategy::parallel_scan}) {
    SCOPED_TRACE(name(strategy));
    const auto plan = linear_scan_plan(context, kSteps, kAll, Dtype::float32, false, strategy);
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
