// SPDX-License-Identifier: Apache-2.0
// Stand-alone check and benchmark of the CUDA engine on the bare recurrence h = a h + b: every
// kernel against a float64 loop first, then against a copy. What a caller gets, beside CUB's scans,
// is scan_cuda.cu's to say.
//   engine_cuda [--quick | --small] [--json FILE]
// --quick: the check alone. --small: a part of it, for compute-sanitizer. The environment variables
// BENCH_ONLY (a part of "float32 linear B8 T4096 H1536") and BENCH_KERNEL choose what is timed.
#include "axes.h"
#include "engine_cuda.cuh"

namespace scanrnn::bench {
namespace {

int failures = 0;

// Buffers of one problem. In log form `a` holds log a, `b` log|b|, and `sign` its sign.
template <class T, bool kLogForm>
struct Bare {
  Shape shape;
  bool batch_major, reverse;
  thrust::device_vector<T> a, b, sign, h, initial, last;

  Bare(Shape s, bool batch_major, bool reverse, Fill decay, bool start, std::uint64_t seed)
      : shape(s), batch_major(batch_major), reverse(reverse) {
    const Index n = s.batch * s.steps * s.hidden;
    a = filled<T>(n, decay, seed);
    b = filled<T>(n, Fill::value, seed + 1);
    if (kLogForm) {
      sign = filled<T>(n, Fill::value, seed + 2);
      thrust::transform(a.begin(), a.end(), a.begin(), LogOf{});
      thrust::transform(b.begin(), b.end(), b.begin(), LogOf{});
      thrust::transform(sign.begin(), sign.end(), sign.begin(), SignOf{});
    }
    h.resize(n);
    if (start) initial = filled<T>(s.batch * s.hidden, Fill::value, seed + 3);
    last.resize(s.batch * s.hidden);
  }
  struct LogOf {
    __host__ __device__ T operator()(T x) const {
      return static_cast<T>(logf(fabsf(static_cast<float>(x))));
    }
    __host__ __device__ static T of(double x);
  };
  struct SignOf {
    __host__ __device__ T operator()(T x) const {
      return static_cast<T>(static_cast<float>(x) < 0 ? -1.0f : 1.0f);
    }
  };

  // As rows of Mem: elements of T, or pairs of them.
  template <class Mem>
  Extent extent() const {
    return {shape.batch, shape.hidden / Mem::kUnits, shape.steps};
  }
  template <class Mem, class U>
  auto tensor(U* data) const {
    using Row = std::conditional_t<std::is_const_v<U>, const typename Mem::T, typename Mem::T>;
    const auto walk = strided(reinterpret_cast<Row*>(data), batch_major, reverse, shape.batch,
                              shape.steps, shape.hidden / Mem::kUnits);
    return Grid<Row>{walk.data, walk.line, walk.step};
  }
  template <class Mem>
  BareSource<Mem, kLogForm> source() {
    const auto in = [&](thrust::device_vector<T>& v) {
      return tensor<Mem>(static_cast<const T*>(raw(v)));
    };
    return {in(a), in(b), in(sign), {}, extent<Mem>().rows, shape.steps};
  }
  template <class Mem>
  BareSink<Mem> sink() {
    return {tensor<Mem>(raw(h)), extent<Mem>().rows};
  }
  template <class Mem>
  StateEnds<Mem> ends() {
    using Row = typename Mem::T;
    const Index rows = extent<Mem>().rows;
    return {{reinterpret_cast<const Row*>(raw(initial)), rows, 0},
            {reinterpret_cast<Row*>(raw(last)), rows, 0},
            rows};
  }
};

template <class T>
struct WideEnds {
  Strided<const T> initial;
  Strided<double> final;
  SCANRNN_HD scan::Carried<double> first(Index line, Index row) const {
    return scan::carried(initial.data ? Wide<T>::read(initial.at_line(line).data, row, 0) : 0.0);
  }
  SCANRNN_HD void last(Index line, Index row, const scan::Carried<double>& s) const {
    final.at_line(line).data[row] = s.h;
  }
};

template <class T, bool kLogForm>
struct Expected {
  thrust::device_vector<double> h, last;
  double scale;  // errors are relative to the largest state
  explicit Expected(Bare<T, kLogForm>& p) : h(p.h.size()), last(p.last.size()) {
    const Index hidden = p.shape.hidden;
    reference(p.template extent<Wide<T>>(), p.template source<Wide<T>>(),
              BareSink<Units<double>>{p.template tensor<Units<double>>(raw(h)), hidden},
              WideEnds<T>{{raw(p.initial), hidden, 0}, {raw(last), hidden, 0}});
    scale = std::max(largest(h), largest(last));
  }
};

// One kernel on one problem, by rows of Mem.
template <class Op, class Mem, class T, bool kLogForm>
struct Job {
  Kernel kernel;
  thrust::device_vector<char> workspace;

  Job(Kernel kernel, const Bare<T, kLogForm>& p)
      : kernel(kernel),
        workspace(
            scan::device_workspace<Op, kCudaDeviceWarps, BareSource<Mem, kLogForm>, BareSink<Mem>>(
                p.template extent<Mem>()),
            0x5a) {}
  void operator()(Bare<T, kLogForm>& p, const Launch& launch) {
    CHECK_CUDA((run<Op>(kernel, p.template extent<Mem>(), p.template source<Mem>(),
                        p.template sink<Mem>(), p.template ends<Mem>(), raw(workspace), launch)));
  }
};

template <class Job, class T, bool kLogForm>
double compare(Job& job, Bare<T, kLogForm>& p, Expected<T, kLogForm>& want, const Launch& launch,
               const char* what) {
  thrust::device_vector<T> first;
  double error = 0;
  for (int twice = 0; twice < 2; ++twice) {
    CHECK_CUDA(cudaMemset(raw(p.h), 0xff, p.h.size() * sizeof(T)));
    CHECK_CUDA(cudaMemset(raw(p.last), 0xff, p.last.size() * sizeof(T)));
    CHECK_CUDA(cudaDeviceSynchronize());  // the stream does not wait for the default one
    job(p, launch);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (twice == 0) {
      error = std::max(worst_error(p.h, want.h, want.scale),
                       worst_error(p.last, want.last, want.scale));
      first = p.h;
    } else if (!same_bits(first, p.h)) {
      std::printf("FAIL two runs differ: %s\n", what);
      ++failures;
    }
  }
  if (!(error <= tolerance<T>(p.shape.steps))) {
    std::printf("FAIL %s: error %.2e, bound %.2e\n", what, error, tolerance<T>(p.shape.steps));
    ++failures;
  }
  return error;
}

template <class Op, class T, bool kLogForm>
void check(const char* domain, const Launch& launch, bool small) {
  std::vector<Index> lengths = {0, 1, 2, 15, 16, 17, 127, 128, 129, 257, 1031, 3000, 20000};
  std::vector<Index> widths = {1, 5, 32, 40, 67, 96};
  if (small) {
    lengths = {1, 17, 1031};
    widths = {5, 40};
  }
  double worst = 0;
  int count = 0;
  for (const Kernel kernel : kKernels) {
    for (const Index steps : lengths) {
      for (const Index hidden : widths) {
        // Every combination of the rest would add nothing but time: they are dealt round.
        const int deal = count++;
        Bare<T, kLogForm> p({deal % 3 == 0 ? 1 : 3, steps, hidden}, deal & 1, deal & 2,
                            deal % 5 == 0 ? Fill::kept : Fill::decay, deal % 7 != 0, 11 + deal);
        Expected<T, kLogForm> want(p);
        const auto what = format("%s %s %s B%d T%d H%d %s%s", name_of(kernel), name_of<T>(), domain,
                                 (int)p.shape.batch, (int)steps, (int)hidden,
                                 p.batch_major ? "BTH" : "TBH", p.reverse ? " reversed" : "");
        Job<Op, Units<T>, T, kLogForm> job(kernel, p);
        worst = std::max(worst, compare(job, p, want, launch, what.c_str()) / tolerance<T>(steps));
        if constexpr (sizeof(T) == 2) {
          if (hidden % 2 != 0) continue;
          Job<Op, scan::Pairs<T>, T, kLogForm> pairs(kernel, p);
          worst = std::max(worst, compare(pairs, p, want, launch, (what + " by pairs").c_str()) /
                                      tolerance<T>(steps));
        }
      }
    }
  }
  std::printf("check %-9s %-12s %4d cases, worst error %.2f of its bound\n", name_of<T>(), domain,
              count, worst);
}

bool wanted(const char* dtype, const char* domain, const Shape& s) {
  const char* only = std::getenv("BENCH_ONLY");
  return !only ||
         format("%s %s B%d T%d H%d", dtype, domain, (int)s.batch, (int)s.steps, (int)s.hidden)
                 .find(only) != std::string::npos;
}

template <class Op, class T>
void measure(const char* domain, const Shape& s, bool batch_major, Fill decay,
             const std::vector<Kernel>& kernels, const Launch& launch, Report& report) {
  if (!wanted(name_of<T>(), domain, s)) return;
  const Index n = s.batch * s.steps * s.hidden;
  const double bytes = 3.0 * n * sizeof(T);
  const int sets = std::max(1, std::min(4, static_cast<int>(600e6 / bytes) + 1));
  std::vector<Bare<T, false>> p;
  for (int i = 0; i < sets; ++i) p.emplace_back(s, batch_major, false, decay, true, 100 + 10 * i);
  Expected<T, false> want(p[0]);
  const auto time_one = [&](auto job) {
    const Kernel kernel = job.kernel;
    const auto what =
        format("%-10s %-8s %-6s %s B%-2d T%-7d H%-4d", name_of(kernel), name_of<T>(), domain,
               batch_major ? "BTH" : "TBH", (int)s.batch, (int)s.steps, (int)s.hidden);
    const double error = compare(job, p[0], want, launch, what.c_str());
    if (decay == Fill::kept) {
      std::printf("%s kept: error %.2e of bound %.2e\n", what.c_str(), error,
                  tolerance<T>(s.steps));
      return;
    }
    const auto time = time_calls(launch.stream, 4, [&](int i) { job(p[i % sets], launch); });
    const double gbps = bytes / time.ms / 1e6, share = gbps / report.copy();
    std::printf("%s %8.4f ms (+-%.4f) %6.0f GB/s %5.1f %%  error %.1e\n", what.c_str(), time.ms,
                time.spread, gbps, 100 * share, error);
    report.add(format(
        "{\"bench\": \"scan\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", \"domain\": \"%s\", "
        "\"pass\": \"forward\", \"layout\": \"%s\", \"B\": %d, \"T\": %d, \"H\": %d, "
        "\"dtype\": \"%s\", \"ms\": %.5f, \"ms_spread\": %.5f, \"gbps\": %.1f, "
        "\"copy_share\": %.4f, \"max_error\": %.3e}",
        name_of(kernel), domain, batch_major ? "BTH" : "TBH", (int)s.batch, (int)s.steps,
        (int)s.hidden, name_of<T>(), time.ms, time.spread, gbps, share, error));
  };
  for (const Kernel kernel : kernels) {
    if (const char* only = std::getenv("BENCH_KERNEL")) {
      if (std::string(only) != name_of(kernel)) continue;
    }
    if constexpr (sizeof(T) == 2) {  // as the library would
      if (dispatch::cuda_pairs_pay(s.batch * s.hidden, launch.units, kernel == Kernel::device)) {
        time_one(Job<Op, scan::Pairs<T>, T, false>(kernel, p[0]));
        continue;
      }
    }
    time_one(Job<Op, Units<T>, T, false>(kernel, p[0]));
  }
}

template <class T>
void measure_all(const Launch& launch, Report& report) {
  using Linear = scan::AffineOp<float>;
  using Log = scan::LogAffineOp<float>;
  constexpr auto S = Kernel::sequential, B = Kernel::block, D = Kernel::device;
  for (const Shape& s : kShapes) {
    const bool long_and_few = hopeless_to_walk(s);
    const std::vector<Kernel> all = long_and_few ? std::vector{B, D} : std::vector{S, B, D};
    for (const bool batch_major : {false, true}) {
      if (batch_major && s.batch == 1) continue;  // the same memory
      measure<Linear, T>("linear", s, batch_major, Fill::decay, all, launch, report);
      measure<Log, T>("log", s, batch_major, Fill::decay, {B, D}, launch, report);
    }
  }
}

int run_all(int argc, char** argv) {
  bool quick = false, small = false;
  const char* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick" || word == "--small") {
      quick = true;
      small = word == "--small";
    } else if (word == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--quick | --small] [--json FILE]\n", argv[0]);
      return 2;
    }
  }
  Launch launch;
  CHECK_CUDA(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaDeviceGetAttribute(&launch.units, cudaDevAttrMultiProcessorCount, 0));
  int shared;
  CHECK_CUDA(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  launch.shared = static_cast<std::size_t>(shared);

  if (!std::getenv("BENCH_ONLY")) {
    check<scan::AffineOp<float>, float, false>("linear", launch, small);
    check<scan::LogAffineOp<float>, float, false>("log", launch, small);
    check<scan::LogAffineOp<float>, float, true>("log inputs", launch, small);
    check<scan::AffineOp<float>, __nv_bfloat16, false>("linear", launch, small);
    check<scan::LogAffineOp<float>, __half, false>("log", launch, small);
    check<scan::AffineOp<double>, double, false>("linear", launch, small);
    check<scan::LogAffineOp<double>, double, false>("log", launch, small);
  }
  if (!quick) {
    Report report(json, argc, argv, Copy(launch.stream, launch.units).gbps());
    std::printf("copy: %.0f GB/s\n", report.copy());
    const Shape longest = kShapes[4];
    using Linear = scan::AffineOp<float>;
    using Log = scan::LogAffineOp<float>;
    measure<Linear, float>("linear", longest, false, Fill::kept, {Kernel::device}, launch, report);
    measure<Log, float>("log", longest, false, Fill::kept, {Kernel::device}, launch, report);
    measure<Linear, float>("linear", {1, 4096, 96}, false, Fill::kept, {Kernel::device}, launch,
                           report);
    measure<Log, float>("log", {1, 4096, 96}, false, Fill::kept, {Kernel::device}, launch, report);
    measure_all<float>(launch, report);
    measure_all<__nv_bfloat16>(launch, report);
  }
  std::printf(failures ? "%d FAILURES\n" : "ok\n", failures);
  return failures != 0;
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) { return scanrnn::bench::run_all(argc, argv); }
