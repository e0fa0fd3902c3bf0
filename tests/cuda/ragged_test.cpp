// SPDX-License-Identifier: Apache-2.0
// Ragged batches on a GPU: a captured call reads its integers anew each time, and values that make
// no sense touch nothing but the call's tensors.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/compare.h"
#include "support/cuda.h"
#include "support/library.h"
#include "support/ragged_case.h"

namespace scanrnn::test {
namespace {

// A call whose integers can be changed.
class Told {
 public:
  Told(const RaggedCase& c, const Data& data)
      : packed_(c.whole.packed()),
        context_(make_context(stream_)),
        training_(c.whole, data, context_),
        integers_(context_, static_cast<std::size_t>(c.whole.batch + 1) * sizeof(std::int64_t)) {
    const TensorView view = TensorView::of(integers_.data(), Dtype::int64,
                                           {c.whole.batch + (packed_ ? 1 : 0)}, test_device());
    Ragged ragged;
    (packed_ ? ragged.cu_seqlens : ragged.lengths) = view;
    training_.tell(ragged);
  }
  void tell(const std::vector<std::int64_t>& values) {
    integers_.upload(values.data(), values.size() * sizeof(std::int64_t));
  }
  void enqueue() { training_.enqueue(); }
  // All outputs, byte by byte; memory around tensors is as it was.
  std::vector<std::uint8_t> bits() {
    stream_.synchronize();
    return training_.bits();
  }
  Context& context() { return context_; }

 private:
  bool packed_;
  Stream stream_;
  Context context_;
  Training training_;
  Buffer integers_;
};

const Way kSharedLines{dispatch::Strategy::persistent, Way::Split::shared_lines};

using RaggedOnCuda = CudaTest;

TEST_F(RaggedOnCuda, CapturedCallsReadLengthsAnew) {
  Random random(1531);
  for (const LayerOptions& options : few_variants()) {
    for (int bits = 0; bits < 4; ++bits) {
      const bool packed = bits & 1, wide = bits & 2;
      RaggedCase c = ragged_case(options, {9, 4, 0, 12, 5}, packed);
      c.whole.layer.bidirectional = true;
      // Which way the device takes depends on lengths, and which sequences share a line.
      if (wide && is_dense(options)) {
        c.whole.way = kSharedLines;
      } else if (wide) {
        c.whole.layer.hidden_size = 900;
      }
      fit(c.whole.layer);
      Told call(c, random_data(c.whole, random));
      const std::vector<std::vector<std::int64_t>> all{
          {9, 4, 0, 12, 5}, {0, 12, 12, 1, 5}, {6, 6, 6, 6, 6}};
      std::vector<std::vector<std::uint8_t>> want;
      for (const auto& lengths : all) {
        call.tell(as_told(packed, lengths));
        call.enqueue();
        want.push_back(call.bits());
      }
      TimedGraph graph(call.context(), [&] { call.enqueue(); });
      for (std::size_t i = 0; i < all.size(); ++i) {
        call.tell(as_told(packed, all[i]));
        graph.run();
        EXPECT_EQ(call.bits(), want[i]) << text(c.whole) << " lengths " << i;
      }
    }
  }
}

TEST_F(RaggedOnCuda, SenselessIntegersTouchNothingElse) {
  Random random(1532);
  const std::int64_t far = std::int64_t{1} << 40;
  for (const LayerOptions& options : few_variants()) {
    std::vector<Way> all = ways(options);
    if (is_dense(options)) all.push_back(kSharedLines);
    for (const Way& way : all) {
      for (bool packed : {false, true}) {
        RaggedCase c = ragged_case(options, {9, 4, 0, 12, 5}, packed);
        c.whole.way = way;
        Told call(c, random_data(c.whole, random));
        for (const auto& values : std::vector<std::vector<std::int64_t>>{
                 {-7, 40, far, -far, 5, 3}, {30, 20, 10, 5, 1, 0}, {0, far, 0, far, 0, far}}) {
          call.tell(values);
          call.enqueue();
        }
        call.bits();
        // Lengths are brought to what is there.
        if (packed) continue;
        call.tell({-7, 40, far, -far, 5});
        call.enqueue();
        const auto got = call.bits();
        call.tell({0, 13, 13, 0, 5});
        call.enqueue();
        EXPECT_EQ(call.bits(), got) << text(c.whole);
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
