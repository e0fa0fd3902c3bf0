// SPDX-License-Identifier: Apache-2.0
// The result file of a stand-alone bench, of the schema that all benchmarks share.
#pragma once

#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#define CHECK_CUDA(call)                                                 \
  do {                                                                   \
    const cudaError_t status_ = (call);                                  \
    if (status_ != cudaSuccess) {                                        \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(status_));                         \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

namespace scanrnn::bench {

inline std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

// One result file of the schema that all benchmarks share.
class Report {
 public:
  Report(const char* path, int argc, char** argv, double copy) : path_(path), copy_(copy) {
    for (int i = 0; i < argc; ++i) command_ += (i ? " " : "") + std::string(argv[i]);
  }
  double copy() const { return copy_; }
  void add(const std::string& row) { rows_ += (rows_.empty() ? "    " : ",\n    ") + row; }
  ~Report() {
    if (!path_) return;
    std::FILE* file = std::fopen(path_, "w");
    if (!file) return;
    int device, driver, runtime;
    cudaDeviceProp properties;
    cudaGetDevice(&device);
    cudaGetDeviceProperties(&properties, device);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto variable = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value ? value : "");
    };
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    std::fprintf(file,
                 "{\n  \"gpu\": \"%s\", \"driver\": \"%d\", \"cuda\": \"%d\", \"commit\": \"%s\", "
                 "\"dirty\": %s,\n  \"command\": \"%s\", \"date\": \"%s\", \"copy_gbps\": %.0f,\n"
                 "  \"rows\": [\n%s\n  ]\n}\n",
                 properties.name, driver, runtime, variable("BENCH_COMMIT").c_str(),
                 variable("BENCH_DIRTY") == "0" ? "false" : "true", command_.c_str(), date, copy_,
                 rows_.c_str());
    std::fclose(file);
  }

 private:
  const char* path_;
  double copy_;
  std::string command_, rows_;
};

}  // namespace scanrnn::bench
