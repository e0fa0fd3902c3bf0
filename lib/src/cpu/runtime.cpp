// SPDX-License-Identifier: Apache-2.0
// The CPU's runtime, and the only place that asks what processor this is: the best instruction set
// that it runs, memory of the heap, and functions between two looks at the clock.
#include "cpu/runtime.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "cpu/kernels/table.h"
#include "platform.h"
#include "scanrnn/error.h"

namespace scanrnn {

const CpuKernels& cpu_kernels_sse4();
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();

namespace {

struct InstructionSet {
  const char* name;
  bool supported;
  const CpuKernels& (*table)();
};

// Best first.
std::vector<InstructionSet> instruction_sets() {
  return {
#ifdef SCANRNN_WITH_AVX512
      {"avx512", runs_x86_64(4), cpu_kernels_avx512},
#endif
#ifdef SCANRNN_WITH_AVX2
      {"avx2", runs_x86_64(3), cpu_kernels_avx2},
#endif
#ifdef SCANRNN_WITH_SSE4
      {"sse4", runs_x86_64(2), cpu_kernels_sse4},
#endif
  };
}

// Lowest first.
std::string names() {
  std::string sets;
  for (const InstructionSet& isa : instruction_sets()) {
    sets = isa.name + (sets.empty() ? "" : " " + sets);
  }
  return sets;
}

// SCANRNN_ISA caps the choice, to test a lesser one on a better machine; null: there is no cap.
const char* cap_of_sets() {
  const char* cap = std::getenv("SCANRNN_ISA");
  return cap && *cap ? cap : nullptr;
}

// Null where this processor runs none.
const CpuKernels* best_kernels() {
  const char* cap = cap_of_sets();
  bool reached = cap == nullptr;
  for (const InstructionSet& isa : instruction_sets()) {
    reached = reached || std::string(cap) == isa.name;
    if (reached && isa.supported) return &isa.table();
  }
  return nullptr;
}
const CpuKernels* chosen_kernels() {
  static const CpuKernels* const table = best_kernels();
  return table;
}

struct TimedFunction : TimedGraph::Impl {
  explicit TimedFunction(std::function<void()> w) : work(std::move(w)) {}
  void run() override { work(); }
  double milliseconds() override {
    const auto start = std::chrono::steady_clock::now();
    work();
    const auto taken = std::chrono::steady_clock::now() - start;
    return std::chrono::duration<double, std::milli>(taken).count();
  }

  std::function<void()> work;
};

class CpuRuntime final : public Runtime {
 public:
  int count() const override { return 1; }
  DeviceInfo device(int /*index*/) const override {
    DeviceInfo out;
    out.name = processor_name();
    out.units = std::min(omp_get_max_threads(), omp_get_num_procs());
    out.memory = physical_memory();
    out.architecture = cpu_kernels().name;
    return out;
  }
  std::string code() const override { return names(); }
  std::unique_ptr<Backend> make_backend(const ContextOptions& options) const override {
    return make_cpu_backend(options);
  }
  Backend& counting_backend() const override { return cpu_counting_backend(); }

  void* allocate(Place /*place*/, std::size_t bytes) const override {
    // More than a pointer can span wraps where it is rounded up to the alignment.
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
    void* out = ::operator new(bytes, std::align_val_t{Arena::kAlignment});
    want_huge_pages(out, bytes);
    return out;
  }
  void release(Place /*place*/, void* data) const noexcept override {
    ::operator delete(data, std::align_val_t{Arena::kAlignment});
  }
  void upload(Place /*place*/, void* to, const void* host, std::size_t bytes) const override {
    std::memcpy(to, host, bytes);
  }
  void download(Place /*place*/, void* host, const void* from, std::size_t bytes) const override {
    std::memcpy(host, from, bytes);
  }
  std::unique_ptr<TimedGraph::Impl> timed_graph(Place /*place*/,
                                                std::function<void()> work) const override {
    return std::make_unique<TimedFunction>(std::move(work));
  }
};

}  // namespace

const CpuKernels& cpu_kernels() {
  if (const CpuKernels* table = chosen_kernels()) return *table;
  const char* cap = cap_of_sets();
  throw error(cap ? "SCANRNN_ISA: expected a set of this build (" + names() +
                        ") that this processor runs, got " + cap
                  : "this processor has none of the instruction sets of this build");
}

std::string cpu_architecture() {
  const CpuKernels* table = chosen_kernels();
  return table ? table->name : "";
}

const Runtime& cpu_runtime() {
  static const CpuRuntime runtime;
  return runtime;
}

}  // namespace scanrnn
