// SPDX-License-Identifier: Apache-2.0
// Rules about the sources that no compiler checks: where transcendentals are written, who includes
// whom, what stands in one place alone.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <string>

#include "guards/source.h"

namespace scanrnn::test {
namespace {

// A call of one of the functions, of their float or intrinsic spellings, or of the device's own.
const std::regex kTranscendental(
    R"((^|[^A-Za-z0-9_])((bounded_|__|fast_)?(exp|log|tanh|expm1|log1p|exp2|log2)f?|Exp|Log|Tanh|Expm1|Log1p)\s*\(|ex2\.approx|lg2\.approx|tanh\.approx)");

TEST(Guard, PatternOfTranscendentals) {
  for (const char* call : {"y = exp(x)", "::expf(x)", "std::log1p (x)", "hn::Tanh(d, x)",
                           "__expf(x)", "bounded_exp(x)", "asm(\"ex2.approx.ftz.f32\")"}) {
    EXPECT_TRUE(std::regex_search(call, kTranscendental)) << call;
  }
  for (const char* other :
       {"catalog(x)", "log_a + b", "signed_logaddexp(x)", "regexp(x)", "Domain::log"}) {
    EXPECT_FALSE(std::regex_search(other, kTranscendental)) << other;
  }
}

// The maths of gates and operators is written once. Elsewhere an exponential is a second version of
// it; the one of cost.cpp is of sizes, on a logarithmic scale.
TEST(Guard, TranscendentalsAreInCellsAndOperators) {
  const std::set<fs::path> allowed{"scan/include/scanrnn/scan/log_op.h",
                                   "scan/include/scanrnn/scan/hd.h",
                                   "scan/include/scanrnn/scan/float_pair.h",
                                   "scan/include/scanrnn/scan/log_state.h",
                                   "lib/src/cpu/kernels/simd.h",
                                   "dispatch/src/cost.cpp"};
  int files = 0, calls_where_allowed = 0;
  for (const char* folder : {"scan", "dispatch", "lib", "python/src"}) {
    for (const fs::path& path : sources(folder)) {
      ++files;
      const auto found = matches(path, kTranscendental);
      if (allowed.count(path) || path.parent_path() == "lib/include/scanrnn/cells") {
        calls_where_allowed += static_cast<int>(found.size());
      } else {
        for (const std::string& line : found) ADD_FAILURE() << line;
      }
    }
  }
  EXPECT_GT(files, 30) << "the sources were not found from " << root();
  EXPECT_GT(calls_where_allowed, 20) << "the pattern finds nothing any more";
}

// scan and dispatch see neither each other nor the library; headers that are installed see no
// source.
TEST(Guard, LayersIncludeDownwards) {
  struct Layer {
    const char* folder;
    std::regex allowed;
  };
  // The standard library, OpenMP and CUDA's own headers are in <>, or named here.
  const Layer layers[] = {
      {"scan/include", std::regex(R"(include\s*("scanrnn/scan/|<(?!scanrnn)))")},
      {"dispatch/include", std::regex(R"(include\s*("scanrnn/dispatch/|<(?!scanrnn|cuda|omp)))")},
      {"dispatch/src", std::regex(R"(include\s*("scanrnn/dispatch/|<(?!scanrnn|cuda|omp)))")},
      {"lib/include", std::regex(R"(include\s*("scanrnn/|<(?!scanrnn|cuda|omp|hwy|cblas)))")},
  };
  const std::regex include(R"(^\s*#\s*include)");
  for (const Layer& layer : layers) {
    int found = 0;
    for (const fs::path& path : sources(layer.folder)) {
      std::ifstream file(root() / path);
      for (std::string line; std::getline(file, line);) {
        if (!std::regex_search(line, include)) continue;
        ++found;
        EXPECT_TRUE(std::regex_search(line, layer.allowed)) << path << ": " << line;
      }
    }
    EXPECT_GT(found, 0) << layer.folder;
  }
}

// BLAS in one file, the device query in another: what the architecture promises to keep in one
// place. A launch takes what it needs to know of the device from its plan.
TEST(Guard, OnePlaceForEachLibrary) {
  struct Rule {
    std::regex pattern;
    std::set<fs::path> allowed;
  };
  const Rule rules[] = {
      {std::regex(R"(cblas_|SCANRNN_BLAS_SYMBOL)"), {"lib/src/cpu/gemm.cpp"}},
      {std::regex(R"(cudaGetDeviceProperties|cudaGetDeviceCount|)"
                  R"(cudaDeviceGetAttribute|cudaOccupancy|cudaDeviceGetLimit|cudaMemGetInfo)"),
       {"lib/src/cuda/runtime.cpp"}},
      {std::regex(R"(hwy/|hn::|hwy::)"),
       {"lib/src/cpu/kernels/simd.h", "lib/src/cpu/kernels/scan_lanes.h",
        "lib/src/cpu/kernels/table.cpp"}},
  };
  for (const Rule& rule : rules) {
    int used = 0;
    for (const char* folder : {"scan", "dispatch", "lib", "python/src"}) {
      for (const fs::path& path : sources(folder)) {
        const auto found = matches(path, rule.pattern);
        if (rule.allowed.count(path)) {
          used += static_cast<int>(found.size());
          continue;
        }
        for (const std::string& line : found) ADD_FAILURE() << line;
      }
    }
    EXPECT_GT(used, 0);
  }
}

// Whether CUDA was built is asked once, where a runtime is picked. What is CUDA's own is in the
// folders of that name, so that everything else is the same object in a build with CUDA and in one
// without.
TEST(Guard, OnePlaceAsksForCuda) {
  const std::regex asks(R"(SCANRNN_WITH_CUDA|SCANRNN_CUDA_ARCHITECTURES)");
  const std::regex own(R"(\bcuda([A-Z]\w*\s*\(|\w+_t\b)|include\s*<(cuda|cub)|<<<)");
  for (const char* code : {"cudaMallocAsync(&p, n, s)", "static_cast<cudaStream_t>(stream)",
                           "#include <cuda_runtime_api.h>", "kernel<<<1, 32>>>(x)"}) {
    EXPECT_TRUE(std::regex_search(code, own)) << code;
  }
  for (const char* code : {"Device::cuda(index)", "cuda_runtime()", "cuda->code()"}) {
    EXPECT_FALSE(std::regex_search(code, own)) << code;
  }
  int questions = 0, used = 0;
  for (const char* folder : {"scan", "dispatch", "lib", "python/src"}) {
    for (const fs::path& path : sources(folder)) {
      if (path.string().find("/cuda/") != std::string::npos) {
        used += static_cast<int>(matches(path, own).size());
        continue;
      }
      for (const std::string& line : matches(path, own)) ADD_FAILURE() << line;
      const auto asked = matches(path, asks);
      questions += static_cast<int>(asked.size());
      if (path == "lib/src/stack/runtime.cpp") continue;
      for (const std::string& line : asked) ADD_FAILURE() << line;
    }
  }
  EXPECT_EQ(questions, 1);
  EXPECT_GT(used, 50) << "the pattern finds nothing any more";
}

// The CPU part is to compile on other systems, so what no standard of C++ has is in one place. Not
// asked: CUDA's files, which are for Linux, and the one word of hd.h that makes a function inline.
TEST(Guard, OnePlaceForEachCompilerAndSystem) {
  const std::regex pattern(
      R"(__attribute__|__builtin_|__asm__|__declspec|__VERSION__|_Float16|\b_mm\d*_|__int128|)"
      R"(<(unistd|dlfcn|pthread|sched|cpuid|windows|immintrin|x86intrin|sys/[a-z]+)\.h>|/proc/)");
  for (const char* code : {"__builtin_expect(a, b)", "#include <sys/mman.h>", "_mm256_add_ps(a, b)",
                           "static _Float16 x;", "#include <unistd.h>"}) {
    EXPECT_TRUE(std::regex_search(code, pattern)) << code;
  }
  const std::set<fs::path> allowed{"lib/src/platform.h", "lib/src/platform.cpp",
                                   "scan/include/scanrnn/scan/hd.h"};
  std::set<fs::path> used;
  for (const char* folder : {"scan", "dispatch", "lib", "python/src"}) {
    for (const fs::path& path : sources(folder)) {
      if (path.extension() == ".cu" || path.extension() == ".cuh" ||
          path.string().find("cuda") != std::string::npos) {
        continue;
      }
      for (const std::string& line : matches(path, pattern)) {
        used.insert(path);
        if (!allowed.count(path)) ADD_FAILURE() << line;
      }
    }
  }
  EXPECT_EQ(used, allowed);
}

// The library is loaded into processes that may have another C++ runtime as well, and of two, the
// locales behind streams are what breaks. Its words are put together from strings.
TEST(Guard, NoStreams) {
  const std::regex include(R"(#\s*include\s*<(i|o|s|f|io)stream>)");
  EXPECT_TRUE(std::regex_search("#include <sstream>", include));
  for (const char* folder : {"scan", "dispatch", "lib", "python/src"}) {
    for (const fs::path& path : sources(folder)) {
      for (const std::string& line : matches(path, include)) ADD_FAILURE() << line;
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
