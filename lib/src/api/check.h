// SPDX-License-Identifier: Apache-2.0
// Argument checks: each throws with the argument's name, what came and what was wanted.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "scanrnn/context.h"
#include "scanrnn/error.h"
#include "scanrnn/layer.h"

namespace scanrnn {

// The cell of a layer whose options make sense.
const CellInfo& check_options(const LayerOptions& options);
// A number by which plans of layers with other options are told apart, but for batch_first, which
// says how a caller's tensors lie (api/options.cpp).
std::uint64_t number_of(const LayerOptions& options);
// That the cell has the options that are not the default (api/options.cpp).
void check_own_options(const LayerOptions& options, const CellInfo& cell);

// Up to three sizes.
class Extents {
 public:
  Extents(std::initializer_list<std::int64_t> sizes) : Extents(sizes.begin(), sizes.size()) {}
  Extents(const std::vector<std::int64_t>& sizes) : Extents(sizes.data(), sizes.size()) {}
  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }
  std::size_t size() const { return rank_; }

 private:
  Extents(const std::int64_t* sizes, std::size_t rank) : rank_(rank) {
    std::copy_n(sizes, rank, sizes_.begin());
  }
  std::array<std::int64_t, 3> sizes_{};
  std::size_t rank_;
};

// How elements may lie: in contiguous rows, those of an output apart from one another; or at any
// strides, those of an input with repetitions, those of an output without.
enum class Layout : std::uint8_t { rows, output_rows, input, output };

// Whether there is no tensor; one that has no elements needs no address.
inline bool is_absent(const TensorView& view) {
  const auto end = view.sizes.begin() + std::clamp(view.rank, 0, kMaxRank);
  return !view && std::find(view.sizes.begin(), end, 0) == end;
}

// What a tensor must be. `axes` names the sizes: "(T, B, C)".
struct Expected {
  const char* name;
  Extents sizes;
  const char* axes;
  Dtype dtype;
  Device device;
  bool optional = false;
  const char* prefix = "";  // of the name: "d" of a gradient
  Layout layout = Layout::rows;
};

// Shape, dtype, device, and strides, as the layout has them. Returns the tensor; one without
// elements has an address, whatever came, since a null one means: absent.
TensorView check(const TensorView& view, const Expected& want);

// A value_error unless the condition holds. `words` is a text, or a function that puts one
// together: a call checks much, and nearly always all of it holds.
template <class Words>
void require(bool holds, const Words& words) {
  if (holds) return;
  if constexpr (std::is_invocable_v<Words>) {
    throw value_error(words());
  } else {
    throw value_error(words);
  }
}

// Where a tensor lies: its first byte, and those from there on, 1 of one with gaps; none of
// nothing.
struct Bytes {
  std::uintptr_t begin;
  std::size_t count = 0;

  explicit Bytes(const TensorView& view) : begin(reinterpret_cast<std::uintptr_t>(view.data)) {
    std::int64_t values = 1, last = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
      values *= view.sizes[axis];
      last += (view.sizes[axis] - 1) * view.strides[axis];
    }
    if (!view || values == 0) return;
    count = last + 1 == values ? static_cast<std::size_t>(values) * size_of(view.dtype) : 1;
  }
  bool shares(const Bytes& other) const {
    if (count == 0 || other.count == 0) return false;
    return begin < other.begin ? other.begin - begin < count : begin - other.begin < other.count;
  }
};

// Throws unless so many outputs, name(i) in errors, are in memory of their own: no two begin at one
// address, and those without gaps have no byte in common.
template <class View, class Name>
void check_apart(std::size_t count, View&& view, Name&& name) {
  std::vector<Bytes> bytes;
  bytes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes.emplace_back(view(i));
    for (std::size_t j = 0; j < i; ++j) {
      require(!bytes[i].shares(bytes[j]), [&] {
        return std::string(name(i)) + ": expected memory of its own, got that of " + name(j);
      });
    }
  }
}

// A workspace or reserve: large enough and aligned as Span says.
void check(const Span& span, const char* name, std::size_t bytes, const dispatch::Plan& plan);

// A value_error that begins with `what()` unless the product of `factors` is far from wrapping,
// and that of any of them.
template <class What>
void check_countable(const What& what, std::initializer_list<std::int64_t> factors) {
  double product = 1;
  for (std::int64_t factor : factors) product *= std::max(1.0, static_cast<double>(factor));
  require(product < 0x1p62, [&] { return what() + " take more bytes than can be counted"; });
}

// Rules that can be looked up, and names that end.
void check_profile(const dispatch::Profile& profile);

// A number in the fewest digits that read back as it.
std::string text(double number);

// A forced strategy that cannot run is a value_error that says why.
void check_strategy(const dispatch::Problem& problem, const dispatch::DeviceLimits& device);

}  // namespace scanrnn
