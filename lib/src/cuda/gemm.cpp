// SPDX-License-Identifier: Apache-2.0
// The only BLAS calls on CUDA. Algorithms are chosen once for each shape and kept in the context.
#include "cuda/gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "cuda/padded.h"
#include "cuda/status.h"

namespace scanrnn {
namespace {

// cuBLASLt as the process has it, the wheel beside this package, or the system's.
struct Library {
  void* handle = nullptr;

  Library() {
    const std::string soname = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
    handle = dlopen(soname.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) handle = dlopen(beside_package(soname).c_str(), RTLD_LAZY);
    if (!handle) handle = dlopen(soname.c_str(), RTLD_LAZY);
    if (!handle) handle = dlopen(("/usr/local/cuda/lib64/" + soname).c_str(), RTLD_LAZY);
    if (!handle) {
      throw cuda_error(soname +
                       " was not found: install CUDA's cuBLAS, or pip install scanrnn[cuda" +
                       std::to_string(CUDART_VERSION / 1000) + "]");
    }
  }
  // site-packages/scanrnn/<this> -> site-packages/nvidia/cu13/lib
  static std::string beside_package(const std::string& soname) {
    Dl_info here;
    if (!dladdr(reinterpret_cast<void*>(&beside_package), &here) || !here.dli_fname) return soname;
    const std::string path = here.dli_fname;
    const std::size_t package = path.rfind("/scanrnn/");
    if (package == std::string::npos) return soname;
    return path.substr(0, package) + "/nvidia/cu" + std::to_string(CUDART_VERSION / 1000) +
           "/lib/" + soname;
  }
  template <class F>
  F* find(const char* symbol) const {
    auto* function = reinterpret_cast<F*>(dlsym(handle, symbol));
    if (!function) throw cuda_error(std::string("cuBLASLt has no ") + symbol);
    return function;
  }
};

struct Functions {
  Library library;
#define SCANRNN_LT(name) decltype(&::name) name = library.find<decltype(::name)>(#name)
  SCANRNN_LT(cublasLtCreate);
  SCANRNN_LT(cublasLtMatmul);
  SCANRNN_LT(cublasLtMatmulAlgoGetHeuristic);
  SCANRNN_LT(cublasLtMatmulAlgoConfigGetAttribute);
  SCANRNN_LT(cublasLtMatmulDescCreate);
  SCANRNN_LT(cublasLtMatmulDescDestroy);
  SCANRNN_LT(cublasLtMatmulDescSetAttribute);
  SCANRNN_LT(cublasLtMatrixLayoutCreate);
  SCANRNN_LT(cublasLtMatrixLayoutDestroy);
  SCANRNN_LT(cublasLtMatmulPreferenceCreate);
  SCANRNN_LT(cublasLtMatmulPreferenceDestroy);
  SCANRNN_LT(cublasLtMatmulPreferenceSetAttribute);
  SCANRNN_LT(cublasLtGetStatusString);
#undef SCANRNN_LT
};

const Functions& lt() {
  static const Functions functions;
  return functions;
}

void check_status(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(call, lt().cublasLtGetStatusString(status));
}
#define SCANRNN_CUBLAS(call) check_status(lt().call, #call)

cudaDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return CUDA_R_64F;
    case Dtype::float32:
      return CUDA_R_32F;
    case Dtype::bfloat16:
      return CUDA_R_16BF;
    case Dtype::float16:
      return CUDA_R_16F;
    default:  // no layer has another
      break;
  }
  return CUDA_R_32F;
}

cublasComputeType_t compute_of(Dtype dtype, MatmulPrecision precision) {
  if (dtype == Dtype::float64) return CUBLAS_COMPUTE_64F;
  if (dtype != Dtype::float32 || precision == MatmulPrecision::highest) return CUBLAS_COMPUTE_32F;
  return precision == MatmulPrecision::high ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F_FAST_16BF;
}

// What makes an algorithm right for a product; pointers count by their alignment.
using Key = std::tuple<Dtype, MatmulPrecision, Index, Index, Index, Index, Index, Index, bool, bool,
                       bool, bool, bool, unsigned, unsigned, unsigned, std::size_t>;
unsigned alignment(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  unsigned bytes = 256;
  while (address % bytes != 0) bytes /= 2;
  return bytes;
}

// cuBLASLt names algorithms in the order of what it expects of them. It likes to split K of a small
// product into more parts than there is work for: 132 parts of a K of 98 take 31 us, where another
// of its algorithms takes 3.
constexpr int kCandidates = 8;
constexpr double kSmallProduct = 1e8;  // multiply-adds; the times below are of up to so many
constexpr Index kShortPart = 8;        // where parts of K are as long, the library is right
constexpr double kSurelyFaster = 0.6;  // of the time of the first, to take another

std::uint32_t value_of(const cublasLtMatmulAlgo_t& algorithm,
                       cublasLtMatmulAlgoConfigAttributes_t attribute) {
  std::uint32_t value = 0;
  std::size_t bytes = 0;
  SCANRNN_CUBLAS(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &bytes));
  return value;
}
Index parts_of(const cublasLtMatmulAlgo_t& algorithm) {
  return std::max(1u, value_of(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

// Microseconds that a small product is thought to take (docs/decisions/0010).
double expected_us(const cublasLtMatmulHeuristicResult_t& candidate, Index k) {
  const Index parts = parts_of(candidate.algo);
  const double waves = std::max(1.0, std::ceil(static_cast<double>(candidate.wavesCount)));
  const double steps = waves * static_cast<double>((k + parts - 1) / parts);
  if (value_of(candidate.algo, CUBLASLT_ALGO_CONFIG_TILE_ID) == CUBLASLT_MATMUL_TILE_UNDEFINED) {
    return 2.0 + 0.007 * steps;
  }
  if (parts == 1) return 2.6 + 0.02 * steps;
  return 3.7 + 0.028 * steps + 0.2 * static_cast<double>(parts) +
         0.8e-6 * static_cast<double>(candidate.workspaceSize);
}

// The first algorithm, unless K is short for what it does with it and another is surely faster.
const cublasLtMatmulAlgo_t& choose(const cublasLtMatmulHeuristicResult_t* candidates, int count,
                                   const CudaProduct& p) {
  const double work =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const Index parts = parts_of(candidates[0].algo);
  const bool splits_well = parts > 1 && p.k >= kShortPart * parts;
  if (p.dtype == Dtype::float64 || work > kSmallProduct || splits_well) return candidates[0].algo;
  double least = kSurelyFaster * expected_us(candidates[0], p.k);
  int best = 0;
  for (int i = 1; i < count; ++i) {
    const double expected = expected_us(candidates[i], p.k);
    if (expected < least) {
      least = expected;
      best = i;
    }
  }
  return candidates[best].algo;
}

// Everything about a product but its pointers.
struct Prepared {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Prepared() = default;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  ~Prepared() {
    if (operation) lt().cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {a, b, c}) {
      if (layout) lt().cublasLtMatrixLayoutDestroy(layout);
    }
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    SCANRNN_CUBLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
  }

  // cuBLAS is column-major, so what it computes is C^T[n,m] = B^T[n,k] A^T[k,m].
  void prepare(cublasLtHandle_t handle, const CudaProduct& p, MatmulPrecision precision,
               std::size_t workspace) {
    const cudaDataType_t type = type_of(p.dtype);
    const cudaDataType_t scale = p.dtype == Dtype::float64 ? CUDA_R_64F : CUDA_R_32F;
    SCANRNN_CUBLAS(cublasLtMatmulDescCreate(&operation, compute_of(p.dtype, precision), scale));
    const auto layout = [&](cublasLtMatrixLayout_t& out, Index rows, Index columns, Index stride,
                            cudaDataType_t of) {
      SCANRNN_CUBLAS(cublasLtMatrixLayoutCreate(&out, of, static_cast<std::uint64_t>(rows),
                                                static_cast<std::uint64_t>(columns), stride));
    };
    const auto transpose = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, transpose(p.b.transposed));
    set(CUBLASLT_MATMUL_DESC_TRANSB, transpose(p.a.transposed));
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    layout(b, p.b.transposed ? p.k : p.n, p.b.transposed ? p.n : p.k, p.b.stride, type);
    layout(a, p.a.transposed ? p.m : p.k, p.a.transposed ? p.k : p.m, p.a.stride, type);
    layout(c, p.n, p.m, p.c_stride, p.wide ? scale : type);

    cublasLtMatmulPreference_t preference = nullptr;
    SCANRNN_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    const std::uint32_t bytes[] = {alignment(p.b.data), alignment(p.a.data), alignment(p.c)};
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return lt().cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
    };
    cublasLtMatmulHeuristicResult_t candidates[kCandidates] = {};
    int found = 0;
    cublasStatus_t status = prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes[0]);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes[1]);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes[2]);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes[2]);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = lt().cublasLtMatmulAlgoGetHeuristic(handle, operation, b, a, c, c, preference,
                                                   kCandidates, candidates, &found);
    }
    lt().cublasLtMatmulPreferenceDestroy(preference);
    check_status(status, "cublasLtMatmulAlgoGetHeuristic");
    // One that cannot run says so.
    found = static_cast<int>(
        std::remove_if(candidates, candidates + found,
                       [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; }) -
        candidates);
    if (found == 0) fail("cublasLtMatmulAlgoGetHeuristic", "no algorithm for this product");
    algorithm = choose(candidates, found, p);
  }
};

// Handles of our own. To destroy one would end the captures of other streams, whatever mode the
// thread is in, so that each waits for the next context on its device.
class Handles {
 public:
  static Handles& all() {
    static auto* const handles = new Handles;  // until the process ends
    return *handles;
  }
  cublasLtHandle_t take(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& waiting = waiting_[device];
    cublasLtHandle_t out = nullptr;
    if (waiting.empty()) {
      const BesideCaptures beside;
      SCANRNN_CUBLAS(cublasLtCreate(&out));
    } else {
      out = waiting.back();
      waiting.pop_back();
    }
    return out;
  }
  void give_back(int device, cublasLtHandle_t handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_[device].push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<cublasLtHandle_t>> waiting_;
};

}  // namespace

// Some megabytes: a program may meet any number of sizes. Then all are prepared anew, as before.
constexpr std::size_t kMostPrepared = 4096;

struct CudaGemm::Impl {
  cublasLtHandle_t handle = nullptr;
  bool owned = false;
  int device = 0;  // of an owned one
  MatmulPrecision precision;
  std::map<Key, Prepared> prepared;
};

CudaGemm::CudaGemm(void* handle, MatmulPrecision precision) : impl_(std::make_unique<Impl>()) {
  impl_->precision = precision;
  impl_->handle = static_cast<cublasLtHandle_t>(handle);
  if (!handle) {
    SCANRNN_CUDA(cudaGetDevice(&impl_->device));
    impl_->handle = Handles::all().take(impl_->device);
    impl_->owned = true;
  }
}

CudaGemm::~CudaGemm() {
  if (impl_->owned) Handles::all().give_back(impl_->device, impl_->handle);
}

void CudaGemm::set_precision(MatmulPrecision precision) { impl_->precision = precision; }

void CudaGemm::run(const CudaProduct& p, void* workspace, void* stream) {
  if (p.m == 0 || p.n == 0) return;
  const bool tf32 = p.dtype == Dtype::float32 && impl_->precision != MatmulPrecision::highest;
  const PaddedProduct padded = padded_product(p, kCopies);
  if (!is_faster(padded, p, tf32)) return multiply(p, workspace, kWorkspace, stream);
  constexpr std::size_t kLeft = kWorkspace - kCopies;
  run_padded(p, padded, static_cast<char*>(workspace) + kLeft, static_cast<cudaStream_t>(stream),
             [&](const CudaProduct& part) { multiply(part, workspace, kLeft, stream); });
}

void CudaGemm::multiply(const CudaProduct& p, void* workspace, std::size_t bytes, void* stream) {
  const Key key{p.dtype,
                impl_->precision,
                p.m,
                p.n,
                p.k,
                p.a.stride,
                p.b.stride,
                p.c_stride,
                p.a.transposed,
                p.b.transposed,
                p.accumulate,
                p.bias != nullptr,
                p.wide,
                alignment(p.a.data),
                alignment(p.b.data),
                alignment(p.c),
                bytes};
  auto found = impl_->prepared.find(key);
  if (found == impl_->prepared.end()) {
    if (impl_->prepared.size() >= kMostPrepared) impl_->prepared.clear();
    found = impl_->prepared.try_emplace(key).first;
    try {
      found->second.prepare(impl_->handle, p, impl_->precision, bytes);
    } catch (...) {
      impl_->prepared.erase(found);
      throw;
    }
  }
  Prepared& prepared = found->second;
  if (p.bias) prepared.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const double one64 = 1, beta64 = p.accumulate ? 1 : 0;
  const float one32 = 1, beta32 = p.accumulate ? 1 : 0;
  const bool wide = p.dtype == Dtype::float64;
  const void* alpha = wide ? static_cast<const void*>(&one64) : &one32;
  const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
  SCANRNN_CUBLAS(cublasLtMatmul(impl_->handle, prepared.operation, alpha, p.b.data, prepared.b,
                                p.a.data, prepared.a, beta, p.c, prepared.c, p.c, prepared.c,
                                &prepared.algorithm, workspace, bytes,
                                static_cast<cudaStream_t>(stream)));
}

}  // namespace scanrnn
