// SPDX-License-Identifier: Apache-2.0
// The tables of lines that a device prepares for dense cells: sequences by their lengths, and those
// that share lines as one thread would share them.
#include "cuda/line_tables.cuh"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "support/cuda.h"
#include "support/random.h"
#include "support/shared_lines.h"

namespace scanrnn {

inline bool operator==(const RaggedLine& a, const RaggedLine& b) {
  const auto values = [](const RaggedLine& line) {
    return std::tie(line.sequence, line.line, line.first, line.count, line.next, line.steps);
  };
  return values(a) == values(b);
}
inline std::ostream& operator<<(std::ostream& out, const RaggedLine& line) {
  return out << "sequence " << line.sequence << " at " << line.line << ", " << line.first << ": "
             << line.count << " steps, next " << line.next << ", line of " << line.steps;
}

namespace test {
namespace {

using Lengths = std::vector<std::int64_t>;
using Lines = std::vector<RaggedLine>;

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    REQUIRE_CUDA(cudaMalloc(&data_, std::max<std::size_t>(1, count * sizeof(T))));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    REQUIRE_CUDA(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyDefault));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> values() const {
    std::vector<T> out(count_);
    REQUIRE_CUDA(cudaMemcpy(out.data(), data_, count_ * sizeof(T), cudaMemcpyDefault));
    return out;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

// Packed sequences as a device orders them.
Lines ordered(const Lengths& lengths) {
  Lengths ends{0};
  for (const std::int64_t length : lengths) ends.push_back(ends.back() + length);
  const DeviceArray<std::int64_t> told(ends);
  const auto count = static_cast<std::int64_t>(lengths.size());
  Ragged ragged;
  ragged.cu_seqlens = TensorView::of(told.data(), Dtype::int64, {count + 1});
  const DeviceArray<RaggedLine> out(lengths.size());
  ragged::order_lines<<<pointwise::blocks_for(count), ragged::kThreads, 0, nullptr>>>(
      SequenceBounds(ragged, ends.back(), count, true), out.data());
  REQUIRE_CUDA(cudaGetLastError());
  return out.values();
}
// And as they share lines.
Lines shared(const Lines& sequences, std::int64_t most) {
  const DeviceArray<RaggedLine> from(sequences), out(sequences.size());
  ragged::share_lines<<<1, ragged::kThreads, 0, nullptr>>>(
      from.data(), static_cast<std::int64_t>(sequences.size()), most, out.data());
  REQUIRE_CUDA(cudaGetLastError());
  return out.values();
}

Lines wanted_order(const Lengths& lengths) {
  Lines out;
  std::int32_t first = 0;
  for (const std::int64_t length : lengths) {
    const auto n = static_cast<std::int32_t>(out.size()), steps = static_cast<std::int32_t>(length);
    out.push_back({n, 0, first, steps, 0, steps});
    first += steps;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.count > b.count; });
  return out;
}
Lines wanted_shared(const Lines& sequences, std::int64_t most) {
  Lengths lengths;
  for (const RaggedLine& line : sequences) lengths.push_back(line.count);
  SharedLines by(lengths);
  const auto all = static_cast<std::size_t>(by.share(most)), count = sequences.size();
  std::vector<std::size_t> begins(all);
  std::iota(begins.begin(), begins.end(), std::size_t{0});
  std::stable_sort(begins.begin(), begins.end(),
                   [&](std::size_t a, std::size_t b) { return by.steps[a] > by.steps[b]; });
  Lines out;
  for (std::size_t place = 0; place < count; ++place) {
    const std::size_t n = place < all ? begins[place] : all + count - 1 - place;
    RaggedLine own = sequences[n];
    const auto next = static_cast<std::size_t>(by.next[n]);
    own.steps = static_cast<std::int32_t>(std::max<std::int64_t>(by.steps[n], 0));
    own.next = static_cast<std::int32_t>(place < all && next > 0 ? all + next - 1 - place : next);
    out.push_back(own);
  }
  return out;
}

void expect_lines(const Lengths& lengths, std::initializer_list<std::int64_t> shares) {
  const Lines sequences = ordered(lengths);
  EXPECT_EQ(sequences, wanted_order(lengths));
  for (const std::int64_t most : shares) {
    SCOPED_TRACE(std::to_string(lengths.size()) + " sequences in " + std::to_string(most));
    EXPECT_EQ(shared(sequences, most), wanted_shared(sequences, most));
  }
}

Lengths random_lengths(Random& random, int count, int longest) {
  Lengths out;
  for (int n = 0; n < count; ++n) out.push_back(random.below(longest + 1));
  return out;
}

class LineTables : public CudaTest {};

TEST_F(LineTables, AnyNumberOfSequences) {
  Random random(1561);
  for (const int count : {1, 2, 31, 32, 33, 64, 257, 2048}) {
    for (const int longest : {0, 2, 40, 5000}) {
      const Lengths lengths = random_lengths(random, count, longest);
      expect_lines(lengths, {1, count / 2, 5 * count / 8, count});
      if (HasFailure()) return;
    }
  }
}

// Few long ones with many behind each, all alike, halves of one another: lines that take nothing,
// more than a warp asks for at once, or exactly what there is room for.
TEST_F(LineTables, LengthsOfAKind) {
  for (const std::size_t count : {33u, 100u, 2048u}) {
    Lengths one(count, 1), alike(count, 7), halves(count, 8), tail(count, 100), zeros(count, 9);
    one[count / 2] = static_cast<std::int64_t>(count);
    for (std::size_t n = 0; n < count; n += 3) {
      halves[n] = 16;
      zeros[n] = 0;
    }
    for (std::size_t n = 90; n < count; ++n) tail[n] = 1;
    for (const Lengths& lengths : {one, alike, halves, tail, zeros}) {
      expect_lines(lengths, {1, 40, static_cast<std::int64_t>(count)});
      if (HasFailure()) return;
    }
  }
}

// More than may share lines are put in order alone.
TEST_F(LineTables, TenThousandSequences) {
  Random random(1562);
  expect_lines(random_lengths(random, 10000, 50), {});
}

}  // namespace
}  // namespace test
}  // namespace scanrnn
