// SPDX-License-Identifier: Apache-2.0
// The caller's stream: all work is on it and none is waited for, it can be captured, also where
// layer calls run at the same time, and two of them do not meet.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "support/cases.h"
#include "support/compare.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

class CudaStreamTest : public CudaTest {};

Case stream_case(const LayerOptions& options, const Way& way) {
  Case c;
  c.layer = options;
  c.layer.input_size = 24;
  c.layer.hidden_size = 40;
  c.layer.num_layers = 2;
  c.layer.bidirectional = true;
  c.layer.dropout = 0.25;
  fit(c.layer);
  const bool narrow = way == Strategy::direct || way == Strategy::persistent;
  c.layer.dtype = narrow ? Dtype::bfloat16 : Dtype::float32;
  // A device's queue holds about a thousand launches, and a call that has more of them waits.
  c.steps = way == Strategy::step_loop ? 20 : 300;
  c.batch = 3;
  c.way = way;
  return c;
}
// A chain of layers, by parts of the sequence or as one launch.
Case chain_case(const LayerOptions& options, Way::Split split) {
  Case c = stream_case(options, {Strategy::persistent, split});
  c.layer.hidden_size = 64;
  c.layer.num_layers = 3;
  c.layer.bidirectional = false;
  c.layer.dropout = split == Way::Split::as_one ? 0 : 0.25;
  c.steps = 33;  // seven parts, each of some launches
  return c;
}
void expect_planned(const Case& c, const dispatch::Plan& plan) {
  const bool chain = !c.layer.bidirectional;
  if (c.way.split == Way::Split::at_once) {
    EXPECT_EQ(plan.at_once, chain ? 3 : 2);
    EXPECT_EQ(plan.part_steps, chain ? Way::kPart : 0);
  }
  const int layers = c.way.split == Way::Split::as_one ? 3 : 1;  // of a launch
  EXPECT_EQ(std::max(plan.persistent.layers, 1), layers);
}

std::vector<std::uint8_t> bits_of(const Case& c, const Data& data, Context& context) {
  Training training(c, data, context);
  expect_planned(c, training.plan());
  training.enqueue();
  return training.bits();
}

template <class F>
void for_cases(F&& check) {
  for (const LayerOptions& options : few_variants()) {
    std::vector<Case> all;
    for (const Way& way : ways(options)) all.push_back(stream_case(options, way));
    if (is_dense(options)) {
      for (const auto split : {Way::Split::one_by_one, Way::Split::at_once}) {
        all.push_back(stream_case(options, {Strategy::persistent, split}));
      }
      for (const auto split : {Way::Split::at_once, Way::Split::as_one}) {
        all.push_back(chain_case(options, split));
      }
    }
    for (const Case& c : all) {
      SCOPED_TRACE(text(c));
      check(c);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Holds a stream until open(): a producer that is late.
class Gate {
 public:
  void hold(const Stream& stream) {
    REQUIRE_CUDA(cudaLaunchHostFunc(stream.get(), &Gate::wait, this));
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Nobody opened it while the stream waited, so somebody else waited for the stream.
  bool gave_up() const { return gave_up_; }

 private:
  static void CUDART_CB wait(void* self) {
    Gate& gate = *static_cast<Gate*>(self);
    std::unique_lock<std::mutex> lock(gate.mutex_);
    gate.gave_up_ =
        !gate.changed_.wait_for(lock, std::chrono::seconds(20), [&gate] { return gate.open_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, gave_up_ = false;
};

// The input is written on another stream, late; the caller's stream waits for it and the caller
// does not. Right results mean that everything ran behind that wait.
TEST_F(CudaStreamTest, RunsBehindADelayedProducerAndReturnsBefore) {
  for_cases([](const Case& c) {
    Random random(81);
    const Data data = random_data(c, random);
    Stream producer, consumer;
    Context context = make_context(consumer);
    const auto want = bits_of(c, data, context);

    Training training(c, data, context);
    const std::size_t bytes = Training::bytes_of(training.x());
    const Buffer kept(context, bytes);
    REQUIRE_CUDA(cudaMemcpyAsync(kept.data(), training.x().data, bytes, cudaMemcpyDeviceToDevice,
                                 consumer.get()));
    REQUIRE_CUDA(cudaMemsetAsync(training.x().data, 0xFF, bytes, consumer.get()));
    consumer.synchronize();
    Gate gate;
    gate.hold(producer);
    REQUIRE_CUDA(cudaMemcpyAsync(training.x().data, kept.data(), bytes, cudaMemcpyDeviceToDevice,
                                 producer.get()));
    consumer.wait_for(producer);
    training.enqueue();
    EXPECT_TRUE(consumer.busy()) << "the work was not on the caller's stream, or was waited for";
    gate.open();
    EXPECT_TRUE(same_bits("all outputs", training.bits(), want));
    EXPECT_FALSE(gate.gave_up()) << "a call waited for the device";
  });
}

// A graph of forward and backward gives at each replay the bits of a plain run, from whatever is in
// the input then, and whatever is left in workspace and outputs.
TEST_F(CudaStreamTest, CaptureAndReplay) {
  for_cases([](const Case& c) {
    Stream stream;
    Context context = make_context(stream);
    std::vector<Data> inputs;
    for (std::uint64_t seed : {82, 83, 84}) {
      Random random(82);
      inputs.push_back(random_data(c, random));
      Random other(seed);
      inputs.back().x = random_data(c, other).x;
    }
    Training training(c, inputs[0], context);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    REQUIRE_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    try {
      training.enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream.get(), &graph);
      throw;
    }
    REQUIRE_CUDA(cudaStreamEndCapture(stream.get(), &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (const Data& input : inputs) {
      Buffers source(c, input);
      Mirror mirror(context);
      training.poison();
      REQUIRE_CUDA(cudaMemcpyAsync(training.x().data, mirror.view(source.x).data,
                                   Training::bytes_of(training.x()), cudaMemcpyDeviceToDevice,
                                   stream.get()));
      REQUIRE_CUDA(cudaGraphLaunch(executable, stream.get()));
      EXPECT_TRUE(same_bits("all outputs", training.bits(), bits_of(c, input, context)));
    }
    REQUIRE_CUDA(cudaGraphExecDestroy(executable));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
  });
}

// Another stream may be captured, in the mode that forbids most, while a garbage collector gives
// memory back and a thread asks for some.
TEST_F(CudaStreamTest, MemoryBesideACapture) {
  const Stream captured, stream;
  auto context = std::make_unique<Context>(make_context(stream));
  auto buffer = std::make_unique<Buffer>(*context, 1000);
  auto timed = std::make_unique<TimedGraph>(
      *context, [&] { REQUIRE_CUDA(cudaMemsetAsync(buffer->data(), 0, 1000, stream.get())); });
  stream.synchronize();
  cudaGraph_t graph = nullptr;
  REQUIRE_CUDA(cudaStreamBeginCapture(captured.get(), cudaStreamCaptureModeGlobal));
  timed.reset();
  buffer.reset();
  const std::string sent = "as another thread may";
  std::string received(sent.size(), ' ');
  buffer = std::make_unique<Buffer>(*context, 2000);
  buffer->upload(sent.data(), sent.size());
  buffer->download(&received[0], received.size());
  EXPECT_EQ(received, sent);
  buffer.reset();
  context = std::make_unique<Context>(make_context(stream));
  context.reset();
  EXPECT_EQ(cudaStreamEndCapture(captured.get(), &graph), cudaSuccess);
  cudaGetLastError();
  if (graph) REQUIRE_CUDA(cudaGraphDestroy(graph));
}

// A timed graph is such a one: it runs nothing while it is made, and then the same each time.
TEST_F(CudaStreamTest, ATimedGraphRepeatsItsWork) {
  for_cases([](const Case& c) {
    Random random(85);
    const Data data = random_data(c, random);
    Stream stream;
    Context context = make_context(stream);
    const auto want = bits_of(c, data, context);
    Training training(c, data, context);
    training.poison();
    TimedGraph timed(context, [&training] { training.enqueue(); });
    EXPECT_FALSE(same_bits("all outputs", training.bits(), want)) << "it ran while it was made";
    timed.run();
    EXPECT_TRUE(same_bits("all outputs", training.bits(), want));
    training.poison();
    EXPECT_GT(timed.milliseconds(), 0);
    EXPECT_TRUE(same_bits("all outputs", training.bits(), want));
  });
}

TEST_F(CudaStreamTest, ATimedGraphThatFailsLeavesTheStreamAsItWas) {
  Stream stream;
  Context context = make_context(stream);
  const auto failing = [] { throw std::runtime_error("the work's own"); };
  EXPECT_THROW(TimedGraph(context, failing), std::runtime_error);
  cudaStreamCaptureStatus status;
  REQUIRE_CUDA(cudaStreamIsCapturing(stream.get(), &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  ContextOptions on_default;
  on_default.device = test_device();
  Context legacy(on_default);
  EXPECT_THROW(TimedGraph(legacy, [] {}), cuda_error) << "the default stream cannot be captured";
}

TEST_F(CudaStreamTest, TwoStreamsInTwoThreadsDoNotMeet) {
  for_cases([](const Case& c) {
    Random random(85);
    const Data data[] = {random_data(c, random), random_data(c, random)};
    bool same[2] = {true, true};
    std::thread threads[2];
    for (int i = 0; i < 2; ++i) {
      Stream stream;
      Context context = make_context(stream);
      const auto want = bits_of(c, data[i], context);
      threads[i] = std::thread([&c, &data, &same, want, i] {
        Stream own;
        Context context = make_context(own);
        for (int repeat = 0; repeat < 5; ++repeat) {
          same[i] = same[i] && bits_of(c, data[i], context) == want;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(same[0] && same[1]);
  });
}

TEST_F(CudaStreamTest, TheCallersDeviceStaysCurrent) {
  int count = 0;
  REQUIRE_CUDA(cudaGetDeviceCount(&count));
  if (count < 2) SCANRNN_LACKS_GPUS(2, "there is one device");
  const Case c = stream_case({}, Strategy::automatic);
  Random random(86);
  const Data data = random_data(c, random);
  REQUIRE_CUDA(cudaSetDevice(count - 1));
  {
    Context context = make_context(1);  // on the first device
    bits_of(c, data, context);
  }
  int current = -1;
  REQUIRE_CUDA(cudaGetDevice(&current));
  REQUIRE_CUDA(cudaSetDevice(0));
  EXPECT_EQ(current, count - 1);
}

// There is none of that size; what was there goes on.
TEST_F(CudaStreamTest, OutOfMemoryIsSaidAndSurvived) {
  const Case c = stream_case({}, Strategy::automatic);
  Random random(87);
  const Data data = random_data(c, random);
  Stream stream;
  Context context = make_context(stream);
  const auto want = bits_of(c, data, context);
  const std::size_t bytes = std::size_t{1} << 50;
  try {
    const Buffer buffer(context, bytes);
    ADD_FAILURE() << "a petabyte was there";
  } catch (const std::bad_alloc& e) {
    EXPECT_NE(std::string(e.what()).find(std::to_string(bytes)), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("cuda:0"), std::string::npos) << e.what();
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(same_bits("all outputs", bits_of(c, data, context), want));
}

}  // namespace
}  // namespace scanrnn::test
