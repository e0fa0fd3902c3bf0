// SPDX-License-Identifier: Apache-2.0
// The engine over float and double to T = 2^20, where nearly everything is kept: the worst case of
// a recurrence, since a rounding error is forgotten as slowly as the state is.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "scanrnn/scan/cpu.h"
#include "support/random.h"
#include "support/tolerance.h"

namespace scanrnn::test {
namespace {

using scan::Index;

template <class V>
struct Source {
  const scan::Affine<V>* data;
  Source line(Index) const { return *this; }
  scan::Affine<V> load(Index, Index t) const { return data[t]; }
  scan::Affine<V> step(const scan::Affine<V>& item) const { return item; }
};

template <class V>
struct Sink {
  double* data;
  Sink line(Index) const { return *this; }
  void store(Index, Index t, const scan::Affine<V>&, const scan::Carried<V>&,
             const scan::Carried<V>& after) const {
    data[t] = static_cast<double>(after.h);
  }
};

template <class Op, class V>
std::vector<double> run(const std::vector<scan::Affine<V>>& steps, V h0, Index chunk) {
  const auto count = static_cast<Index>(steps.size());
  std::vector<double> out(steps.size());
  scan::Carried<V> carry = scan::carried(h0);
  const scan::Extent extent{1, 1, count};
  std::vector<typename Op::Element> totals(
      static_cast<std::size_t>(chunk ? scan::chunk_count(count, chunk) : 0));
  constexpr int kThreads = 3;
  std::vector<scan::Carried<V>> starts(kThreads);
  omp_set_dynamic(0);
#pragma omp parallel num_threads(kThreads)
  {
    const scan::Team team{omp_get_thread_num(), omp_get_num_threads()};
    const Source<V> source{steps.data()};
    const Sink<V> sink{out.data()};
    if (chunk == 0) {
      scan::sequential<Op>(team, extent, source, sink, {0, count}, &carry);
    } else {
      scan::parallel<Op>(team, extent, source, sink, chunk, totals.data(), starts.data(), &carry);
    }
  }
  EXPECT_EQ(static_cast<double>(carry.h), out.back());
  return out;
}

// What is measured is the recurrence: the reference starts from the same rounded z and b.
template <class V>
std::vector<double> reference(const std::vector<scan::Affine<V>>& steps, V h0) {
  std::vector<double> out;
  long double h = h0;
  for (const auto& f : steps) {
    h += f.b - static_cast<long double>(f.z) * h;
    out.push_back(static_cast<double>(h));
  }
  return out;
}

enum class Decay { constant, random };
enum class Input { constant, positive, sign, none };

class LongScanTest : public testing::TestWithParam<std::tuple<Decay, Input, Index>> {
 protected:
  template <class V>
  void check(Dtype dtype) {
    const auto [decay, input, count] = GetParam();
    Random random(7);
    std::vector<scan::Affine<V>> steps;
    for (Index t = 0; t < count; ++t) {
      const V z = static_cast<V>(decay == Decay::constant ? 1e-7 : random.uniform(0, 1e-7));
      const double g = input == Input::constant   ? 1
                       : input == Input::positive ? random.uniform(0, 2)
                       : input == Input::sign     ? random.uniform(-2, 2)
                                                  : 0;
      steps.push_back({V(1) - z, z, z * static_cast<V>(g)});
    }
    for (double h0 : {0.0, -1.0}) {
      const auto start = static_cast<V>(h0);
      const auto want = reference(steps, start);
      const Tolerance tolerance = forward_tolerance(dtype, count);
      const std::string what = "h0 " + std::to_string(h0);
      EXPECT_TRUE(
          close(what + " sequential", run<scan::AffineOp<V>>(steps, start, 0), want, tolerance));
      for (Index chunk : {16, 256}) {
        const std::string parallel = what + " parallel, chunk " + std::to_string(chunk);
        EXPECT_TRUE(close(parallel + ", linear", run<scan::AffineOp<V>>(steps, start, chunk), want,
                          tolerance));
        EXPECT_TRUE(close(parallel + ", log", run<scan::LogAffineOp<V>>(steps, start, chunk), want,
                          tolerance));
      }
    }
  }
};

TEST_P(LongScanTest, Float) { check<float>(Dtype::float32); }
TEST_P(LongScanTest, Double) { check<double>(Dtype::float64); }

INSTANTIATE_TEST_SUITE_P(Million, LongScanTest,
                         testing::Combine(testing::Values(Decay::constant, Decay::random),
                                          testing::Values(Input::constant, Input::positive,
                                                          Input::sign, Input::none),
                                          testing::Values(Index{1} << 20)));
INSTANTIATE_TEST_SUITE_P(Short, LongScanTest,
                         testing::Combine(testing::Values(Decay::constant, Decay::random),
                                          testing::Values(Input::constant, Input::sign),
                                          testing::Values(Index{1}, Index{2}, Index{15}, Index{257},
                                                          Index{4099})));

}  // namespace
}  // namespace scanrnn::test
