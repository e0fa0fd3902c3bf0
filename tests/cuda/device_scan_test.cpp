// SPDX-License-Identifier: Apache-2.0
// The parallel scan over blocks, whatever the planner would choose: every linear cell and variant,
// dtype, domain, layout and direction, at lengths around its own tiles and at long ones.
#include <set>

#include "support/cases.h"
#include "support/conform.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

class CudaDeviceScanTest : public CudaTest {
 protected:
  static Case device_case(const LayerOptions& options) {
    Case c;
    c.layer = options;
    c.layer.input_size = 3;
    c.layer.hidden_size = 3;
    c.way = {dispatch::Strategy::parallel_scan, Way::Split::across_blocks};
    return c;
  }
  // Values that every dtype can hold, so that one reference serves all of them.
  static Data data_for_any_dtype(Case c, Random& random) {
    c.layer.dtype = Dtype::bfloat16;
    Data data = random_data(c, random);
    const auto shorten = [](Values& values) {
      for (double& value : values) value = rounded(value, Dtype::float16);
    };
    for (Values& values : data.params) shorten(values);
    for (Values* values : {&data.x, &data.h0, &data.dy, &data.dhn}) shorten(*values);
    return data;
  }
  static void check(const Case& c, const Data& data, const oracle::Answer& want) {
    expect_conforms(c, library(c, data), want, "training: ");
    expect_forward(c, library_inference(c, data), want, "inference: ");
  }
};

TEST_F(CudaDeviceScanTest, EveryLengthAroundItsTiles) {
  Random random(121);
  for (const LayerOptions& options : linear_variants()) {
    std::set<std::int64_t> steps{0, 1, 2, 61, 1031};
    for (Dtype dtype : dtypes()) {
      for (std::int64_t tile : device_tiles(options.cell, dtype)) {
        steps.insert({tile - 1, tile, tile + 1, 2 * tile + 1});
      }
    }
    for (std::int64_t length : steps) {
      Case c = device_case(options);
      c.steps = length;
      c.batch = length % 2 ? 1 : 2;
      c.h0 = length % 3;
      c.layer.bidirectional = true;
      const Data data = data_for_any_dtype(c, random);
      const oracle::Answer want = oracle::run(c, data);
      for (Dtype dtype : dtypes()) {
        for (Domain domain : {Domain::log, Domain::linear}) {
          c.layer.dtype = dtype;
          c.layer.domain = domain;
          for (bool batch_first : {false, true}) {
            if (batch_first && c.batch == 1) continue;  // the same memory
            c.layer.batch_first = batch_first;
            check(c, data, want);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Rows around a warp's, and columns enough for the other shape of the tiles' tree.
TEST_F(CudaDeviceScanTest, EveryNumberOfRows) {
  Random random(122);
  for (const LayerOptions& options : linear_variants()) {
    for (std::int64_t hidden : {1, 31, 32, 33, 64, 72}) {
      Case c = device_case(options);
      c.layer.hidden_size = hidden;
      c.layer.bidirectional = hidden % 2;
      fit(c.layer);
      c.layer.batch_first = hidden % 3;
      c.batch = hidden == 1 ? 24 : 2;
      c.steps = hidden == 1 ? 2400 : 300;
      const Data data = data_for_any_dtype(c, random);
      const oracle::Answer want = oracle::run(c, data);
      for (Dtype dtype : dtypes()) {
        c.layer.dtype = dtype;
        c.layer.domain = dtype == Dtype::float32 || hidden % 2 ? Domain::log : Domain::linear;
        check(c, data, want);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaDeviceScanTest, HundredThousandSteps) {
  Random random(123);
  for (const LayerOptions& options : linear_variants()) {
    Case c = device_case(options);
    c.layer.input_size = options.variant == 2 ? 2 : 1;  // SRU with a highway projection, or not
    c.layer.hidden_size = 1;
    c.steps = 100003;
    c.batch = 1;
    c.layer.bidirectional = options.variant == 1;
    const Data data = data_for_any_dtype(c, random);
    const oracle::Answer want = oracle::run(c, data);
    for (Dtype dtype : dtypes()) {
      for (Domain domain : {Domain::log, Domain::linear}) {
        c.layer.dtype = dtype;
        c.layer.domain = domain;
        check(c, data, want);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaDeviceScanTest, AMillionSteps) {
  Random random(124);
  for (const LayerOptions& options : linear_variants()) {
    if (options.variant != 0) continue;
    Case c = device_case(options);
    c.layer.input_size = c.layer.hidden_size = 1;
    c.steps = std::int64_t{1} << 20;
    c.batch = 1;
    const Data data = data_for_any_dtype(c, random);
    const oracle::Answer want = oracle::run(c, data);
    for (Dtype dtype : dtypes()) {
      c.layer.dtype = dtype;
      c.layer.domain = dtype == Dtype::float16 ? Domain::linear : Domain::log;
      check(c, data, want);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
