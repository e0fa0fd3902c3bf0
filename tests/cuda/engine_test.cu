// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of the engine, exactly: integer maps, word for word, through tiles of every
// shape that the library's own Sources have.
#include <gtest/gtest.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "integer_scan.cuh"
#include "recurrence/linear_backward.h"
#include "scanrnn/dispatch/tiles.h"
#include "scanrnn/scan/cuda/block.cuh"
#include "scanrnn/scan/cuda/device/kernel.cuh"
#include "scanrnn/scan/cuda/lanes/kernel.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"
#include "scanrnn/scan/cuda/short.cuh"
#include "support/cases.h"
#include "support/cuda.h"
#include "support/random.h"

namespace scanrnn::test {
namespace {

enum class Kernel { sequential, block, device, lanes, lanes_device, lines, few };
const char* name(Kernel kernel) {
  constexpr const char* kNames[] = {"sequential",    "block", "device", "lanes",
                                    "lanes, device", "lines", "short"};
  return kNames[static_cast<int>(kernel)];
}

using dispatch::kCudaBlockWarps;
using dispatch::kCudaDeviceWarps;

// Tiles of an operator on a Source and a Sink, as the device kernel cuts them.
template <class Op, class From, class To>
constexpr int warps() {
  return scan::cuda::device_warps<Op, From, To, kCudaDeviceWarps>();
}
// The steps of a tile of time, which the library's own kernel of this shape has too.
template <class S>
Index tile_steps(Kernel kernel) {
  using namespace scan::cuda;
  using From = Source<S>;
  using To = Sink<S>;
  using Op = IntegerOp<typename S::Scalar>;
  using LibraryOp = scan::LogAffineOp<scan::Scalar<typename S::Library::V>>;
  static_assert(steps_per_thread<From>() == steps_per_thread<typename S::From>());
  static_assert(device_steps<From>() == device_steps<typename S::From>());
  static_assert(worker_shared<From, To>() == worker_shared<typename S::From, typename S::To>());
  static_assert(warps<Op, From, To>() == warps<LibraryOp, typename S::From, typename S::To>());
  static_assert(parts<Op, From>() == parts<LibraryOp, typename S::From>());
  if (kernel == Kernel::sequential) return steps_per_thread<From>();
  if (kernel == Kernel::block) return kCudaBlockWarps * steps_per_thread<From>();
  if (kernel == Kernel::lanes) return kLanes * line_steps<From>();
  if (kernel == Kernel::lines) return LineTile<From>::kMost;
  if (kernel == Kernel::lanes_device) return kLaneWarps * kLanes * lane_steps<Op, From>();
  const auto shared = static_cast<std::size_t>(shared_context(1).limits().shared_bytes);
  return workers_for<Op, From, To, warps<Op, From, To>()>(shared) * device_steps<From>();
}

struct Trial {
  Kernel kernel;
  Extent extent;
  bool line_major = false, reverse = false, start = true, initial = true;
  bool absent = false;  // the last stream
  Index offset = 0;     // values between an aligned address and the first
  int in_lane = 1;      // lines that a lane walks as one
};
std::string text(const Trial& t) {
  std::ostringstream out;
  out << name(t.kernel) << " lines " << t.extent.lines << " rows " << t.extent.rows << " steps "
      << t.extent.steps << (t.line_major ? " line by line" : "") << (t.reverse ? " reversed" : "")
      << (t.start ? "" : " no state") << (t.initial ? "" : " no initial")
      << (t.absent ? " a stream absent" : "") << " offset " << t.offset << " in a lane "
      << t.in_lane;
  return out.str();
}

// The same values on the host and on the device.
template <class T>
class Both {
 public:
  Both(Context& context, std::size_t count)
      : host(count), buffer_(context, std::max<std::size_t>(count * sizeof(T), 1)) {}
  void upload() { buffer_.upload(host.data(), host.size() * sizeof(T)); }
  std::vector<T> download() const {
    std::vector<T> out(host.size());
    buffer_.download(out.data(), out.size() * sizeof(T));
    return out;
  }
  T* device() const { return static_cast<T*>(buffer_.data()); }

  std::vector<T> host;

 private:
  Buffer buffer_;
};

template <class T>
void fill(std::vector<T>& values, Random& random) {
  for (T& value : values) {
    const std::uint64_t bits = random.bits();
    std::memcpy(&value, &bits, sizeof(T));
  }
}

constexpr std::size_t kGuard = 64;

template <class S>
class Problem {
 public:
  using T = typename S::T;
  using V = typename S::V;

  Problem(Context& context, const Trial& trial, Random& random)
      : trial_(trial),
        layout_(Layout::of(trial.extent, trial.line_major, trial.reverse)),
        initial_(context, rows()),
        start_(context, rows()),
        steps_(context, rows() * static_cast<std::size_t>(trial.extent.steps) + kGuard),
        last_(context, rows() + kGuard) {
    for (int i = 0; i < S::kStreams; ++i) {
      streams_.emplace_back(context,
                            steps_.host.size() - kGuard + static_cast<std::size_t>(trial.offset));
      fill(streams_.back().host, random);
      streams_.back().upload();
    }
    fill(initial_.host, random);
    initial_.upload();
    for (V& state : start_.host) state = S::Memory::read(random_value(random));
    start_.upload();
    steps_.upload();
    last_.upload();
  }

  Source<S> source(bool device) const {
    const Extent& e = trial_.extent;
    Source<S> out{{}, layout_.line, layout_.step, e.steps, nullptr, e.rows, e.steps - 1};
    for (int i = 0; i < S::kStreams; ++i) {
      if (trial_.absent && i == S::kStreams - 1) continue;
      const auto& stream = streams_[static_cast<std::size_t>(i)];
      out.data[i] = at(stream, device) + trial_.offset + layout_.begin;
    }
    if (trial_.initial) out.initial = at(initial_, device);
    return out;
  }
  Sink<S> sink(bool device) {
    return {at(steps_, device) + layout_.begin, layout_.line, layout_.step};
  }
  Ends<S> ends(bool device) {
    return {trial_.start ? at(start_, device) : nullptr, at(last_, device), trial_.extent.rows};
  }
  // The first difference between what the device left and the host's walk.
  testing::AssertionResult same() {
    walk(trial_.extent, source(false), sink(false), ends(false));
    if (auto result = same("step", steps_); !result) return result;
    return same("last state", last_);
  }

 private:
  template <class Values>
  static auto at(Values& values, bool device) {
    return device ? values.device() : const_cast<decltype(values.device())>(values.host.data());
  }
  static T random_value(Random& random) {
    std::vector<T> one(1);
    fill(one, random);
    return one[0];
  }
  std::size_t rows() const {
    return static_cast<std::size_t>(trial_.extent.lines * trial_.extent.rows);
  }
  static testing::AssertionResult same(const char* what, const Both<Left<S>>& values) {
    const auto got = values.download();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == values.host[i]) continue;
      return testing::AssertionFailure()
             << what << " [" << i << "] of " << got.size() - kGuard << ": stored " << got[i].times
             << " times, want " << values.host[i].times << "; before "
             << (got[i].before == values.host[i].before ? "right" : "WRONG") << ", after "
             << (got[i].after == values.host[i].after ? "right" : "WRONG") << ", item "
             << (got[i].item == values.host[i].item ? "right" : "WRONG");
    }
    return testing::AssertionSuccess();
  }

  Trial trial_;
  Layout layout_;
  std::vector<Both<T>> streams_;
  Both<T> initial_;
  Both<V> start_;
  Both<Left<S>> steps_, last_;
};

// Kernels that are tried with the same shapes: of others nothing is compiled.
enum class Kind { tiles, lanes, few };

template <Kind kind, class Op, class S>
cudaError_t launch(const Trial& trial, Problem<S>& problem, void* workspace,
                   const scan::Launch& on) {
  using Wide = typename scan::cuda::Widened<Op, typename S::V>::Op;
  const auto source = problem.source(true);
  const auto sink = problem.sink(true);
  const auto ends = problem.ends(true);
  if constexpr (kind == Kind::few) {
    return scan::launch_short<Wide>(trial.extent, source, sink, ends, on);
  } else if constexpr (kind == Kind::lanes) {
    // Every row is one value wide: what cells and pairs have is not along lanes.
    if (trial.kernel == Kernel::lines) {
      const scan::cuda::LineShape<Source<S>> shape(trial.extent.steps, trial.in_lane);
      return scan::cuda::launch_shape<Op>(shape, trial.extent, source, sink, ends, on);
    }
    return scan::launch_lanes<Op, Op>(trial.extent, source, sink, ends,
                                      trial.kernel == Kernel::lanes_device, workspace, on);
  } else if (trial.kernel == Kernel::sequential) {
    return scan::launch_sequential<Wide>(trial.extent, source, sink, ends, on);
  } else if (trial.kernel == Kernel::block) {
    return scan::launch_block<Wide, kCudaBlockWarps>(trial.extent, source, sink, ends, on);
  } else {
    return scan::launch_device<Op, kCudaDeviceWarps>(trial.extent, source, sink, ends, workspace,
                                                     on);
  }
}

class CudaEngineTest : public CudaTest {
 protected:
  template <Kind kind, class S>
  void run(const Trial& trial) {
    using Op = IntegerOp<typename S::Scalar>;
    Random random(static_cast<std::uint64_t>(deal_));
    Context& context = shared_context(1);
    Problem<S> problem(context, trial, random);
    const std::size_t bytes =
        trial.kernel == Kernel::lanes_device
            ? scan::lanes_workspace<Op, Source<S>>(trial.extent)
            : scan::device_workspace<Op, kCudaDeviceWarps, Source<S>, Sink<S>>(trial.extent);
    Both<unsigned char> workspace(context, bytes + kGuard);
    std::fill(workspace.host.begin(), workspace.host.end(), static_cast<unsigned char>(0x5A));
    workspace.upload();
    const scan::Launch on{nullptr, static_cast<int>(context.limits().units),
                          static_cast<std::size_t>(context.limits().shared_bytes)};
    const cudaError_t status = launch<kind, Op>(trial, problem, workspace.device(), on);
    ASSERT_EQ(status, cudaSuccess) << text(trial);
    ASSERT_TRUE(problem.same()) << text(trial);
    const auto after = workspace.download();
    ASSERT_TRUE(std::equal(after.begin() + static_cast<std::ptrdiff_t>(bytes), after.end(),
                           workspace.host.begin() + static_cast<std::ptrdiff_t>(bytes)))
        << "memory after the workspace changed: " << text(trial);
  }

  // Every combination would add nothing but time: rows and the rest are dealt round.
  template <Kind kind, class S>
  void deal(Kernel kernel, Index steps, Index lines, Index rows) {
    const int i = deal_++;
    Trial trial{kernel, {lines, rows, steps}};
    trial.line_major = kernel == Kernel::lines || i % 2;
    trial.reverse = i / 2 % 2;
    trial.start = i % 3 != 0;
    trial.initial = i % 5 != 0;
    trial.absent = S::kStreams > 2 && i % 7 == 0;
    trial.offset = i % 11 == 0 ? 1 : 0;
    if (kernel == Kernel::lines) trial.in_lane = i / 2 % 4 ? 1 << i % 3 : 1 + i % 5;
    run<kind, S>(trial);
  }

  template <class Memory, class From, class To>
  void check() {
    using S = Shape<Memory, From, To>;
    for (const Kernel kernel : {Kernel::sequential, Kernel::block, Kernel::device}) {
      const Index tile = tile_steps<S>(kernel);
      std::vector<Index> steps = lengths(tile, 2 * tile + 1);
      steps.push_back(1031);
      for (Index t : steps) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          static constexpr Index kLines[] = {1, 3, 1, 2, 24}, kRows[] = {32, 1, 31, 33, 64, 5, 96};
          deal<Kind::tiles, S>(kernel, t, kLines[deal_ % 5], kRows[deal_ % 7]);
          if (HasFatalFailure()) return;
        }
      }
      // Beyond a group of tiles of each level of the device kernel: with columns enough for one
      // level, and too few.
      deal<Kind::tiles, S>(kernel, 20011, 1, 5);
      if (HasFatalFailure()) return;
      if (kernel != Kernel::device) continue;
      for (Index groups : {1, 2}) {
        const Index group = scan::cuda::kFan * tile;
        deal<Kind::tiles, S>(kernel, groups * group, 24, 3);
        deal<Kind::tiles, S>(kernel, groups * group + tile + 1, 24, 3);
        deal<Kind::tiles, S>(kernel, groups * scan::cuda::kFan * group, 1, 33);
        deal<Kind::tiles, S>(kernel, groups * scan::cuda::kFan * group + tile + 1, 1, 7);
        if (HasFatalFailure()) return;
      }
    }
  }
  // Rows that fill a block or not, in lines of any number of them.
  template <class Memory, class From, class To>
  void check_short() {
    static constexpr Index kLines[] = {1, 3, 33, 2, 300}, kRows[] = {1, 32, 129, 5, 1024, 31, 2};
    for (int repeat = 0; repeat < 8; ++repeat) {
      for (Index t = 1; t <= scan::kShortSteps; ++t) {
        deal<Kind::few, Shape<Memory, From, To>>(Kernel::few, t, kLines[deal_ % 5],
                                                 kRows[deal_ % 7]);
        if (HasFatalFailure()) return;
      }
    }
  }
  template <class Memory>
  void check_bare() {
    check_short<Memory, BareSource<Memory, false>, BareSink<Memory>>();
    check_short<Memory, BareBackwardSource<Memory, false>, BareBackwardSink<Memory, false>>();
    check<Memory, BareSource<Memory, false>, BareSink<Memory>>();
    check<Memory, BareSource<Memory, true>, BareSink<Memory>>();
    if constexpr (Memory::kUnits == 1) {
      check_lanes<Memory, BareSource<Memory, false>, BareSink<Memory>>();
      check_lanes<Memory, BareBackwardSource<Memory, false>, BareBackwardSink<Memory, false>>();
    }
  }
  // Lines that begin at any address, in warps that are full or not, with tiles that are full or
  // not.
  template <class S>
  void check_lines() {
    static constexpr Index kLines[] = {1, 33, 7, 32, 200, 64};
    const Index tile = tile_steps<S>(Kernel::lines);
    for (int repeat = 0; repeat < 11; ++repeat) {
      for (Index t : lengths(tile, 3 * tile + 1)) {
        if (t == 0) continue;
        deal<Kind::lanes, S>(Kernel::lines, t, kLines[deal_ % 6], 1);
        if (HasFatalFailure()) return;
      }
    }
  }
  // Tiles and groups of tiles of any few rows. Lines that follow one another step by step leave
  // gaps between the steps of a line.
  template <class Memory, class From, class To>
  void check_lanes() {
    using S = Shape<Memory, From, To>;
    static constexpr Index kRows[] = {1, 2, 8, 3, 32, 1, 5, 16, 31, 1, 4}, kLines[] = {1, 3, 1, 2};
    check_lines<S>();
    if (HasFatalFailure()) return;
    for (const Kernel kernel : {Kernel::lanes, Kernel::lanes_device}) {
      for (int repeat = 0; repeat < 22; ++repeat) {
        const Index rows = kRows[deal_ % 11];
        const Index tile = tile_steps<S>(kernel) / scan::cuda::kLanes * (scan::cuda::kLanes / rows);
        for (Index t : lengths(tile, 2 * tile + 1)) {
          deal<Kind::lanes, S>(kernel, t, kLines[deal_ % 4], rows);
          if (HasFatalFailure()) return;
        }
      }
      if (kernel != Kernel::lanes_device) continue;
      for (Index rows : {1, 6}) {
        const Index tile = tile_steps<S>(kernel) / scan::cuda::kLanes * (scan::cuda::kLanes / rows);
        const Index group = scan::cuda::kLaneGroup * tile;
        for (Index t : {group - 1, group + 1, 2 * group + tile / 2,
                        scan::cuda::kLaneGroup * group + tile + 1}) {
          deal<Kind::lanes, S>(kernel, t, 1, rows);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  // A cell's variants have one shape. Steps of a diagonal one do not compose.
  template <class Memory, template <class> class CellOf, class First, class... Others>
  void check_cell(cell::Variants<First, Others...>) {
    using C = CellOf<First>;
    if constexpr (!C::kDiagonal) {
      check<Memory, ForwardSource<C, Memory>, ForwardSink<C, Memory>>();
      check<Memory, BackwardSource<C, Memory>, BackwardSink<C, Memory>>();
    }
  }
  template <class Memory>
  void check_cells() {
#define SCANRNN_LINEAR_CELL(name, option, variants, ...) \
  check_cell<Memory, cell::name>(cell::variants());
#include "scanrnn/cells.def"
  }

  int deal_ = 0;
};

TEST_F(CudaEngineTest, HalfWords) {
  check_bare<scan::Units<__half>>();
  check_cells<scan::Units<__half>>();
}
TEST_F(CudaEngineTest, PairsOfHalfWords) { check_bare<scan::Pairs<__half>>(); }
TEST_F(CudaEngineTest, Words) {
  check_bare<scan::Units<float>>();
  check_cells<scan::Units<float>>();
}
TEST_F(CudaEngineTest, DoubleWords) {
  check_bare<scan::Units<double>>();
  check_cells<scan::Units<double>>();
}

}  // namespace
}  // namespace scanrnn::test
