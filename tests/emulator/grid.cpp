// SPDX-License-Identifier: Apache-2.0
// Grids of the emulator: a block is a thread of the host, its threads are fibers of that thread.
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "emulator.h"
#include "runtime.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace emulated {
namespace {

constexpr std::size_t kStackBytes = 256 << 10, kSlotBytes = 256;
constexpr int kBlocksAtOnce = 4;  // where nobody asks for more

[[noreturn]] void stop(const char* why) {
  std::fprintf(stderr, "emulator: %s\n", why);
  std::abort();
}

// Fibers wait for a round to end.
struct Barrier {
  unsigned round = 0;
  int arrived = 0;
  std::vector<unsigned> waiting;
};

struct Copy {
  char* to;
  const char* from;
  std::size_t bytes;
};

struct Fiber {
  ucontext_t start;
  jmp_buf state;
  char* stack = nullptr;
  bool started = false;
  std::vector<std::vector<Copy>> groups{1};

  void land(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      for (const Copy& copy : groups[i]) std::memcpy(copy.to, copy.from, copy.bytes);
    }
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(count));
  }
};

struct Warp {
  Barrier barrier;
  int live = 0;
  char slots[2][kLanes][kSlotBytes];
};

// What is asked for again and again.
char* stack_from_pool(bool give, char* stack) {
  static std::mutex mutex;
  static std::vector<char*> pool;
  const std::lock_guard<std::mutex> lock(mutex);
  if (give) {
    pool.push_back(stack);
    return nullptr;
  }
  if (!pool.empty()) {
    char* const out = pool.back();
    pool.pop_back();
    return out;
  }
  void* const out = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (out == MAP_FAILED) stop("no memory for a fiber");
  return static_cast<char*>(out);
}

class Block {
 public:
  Block(const How& how, const std::function<void()>& thread, unsigned index)
      : thread_(thread),
        fibers_(how.block.x * how.block.y * how.block.z),
        warps_((fibers_.size() + kLanes - 1) / kLanes) {
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      ++warps_[i / kLanes].live;
      if (i > 0) ready_.push_back(static_cast<unsigned>(i));
    }
    blockIdx = {index % how.grid.x, index / how.grid.x % how.grid.y,
                index / how.grid.x / how.grid.y};
    blockDim = how.block;
    gridDim = how.grid;
    live_ = static_cast<int>(fibers_.size());
    random_ = (index + 1) * 2654435761u ^ seed();
  }
  ~Block() {
    for (Fiber& fiber : fibers_) stack_from_pool(true, fiber.stack);
  }
  void run();

  Fiber& own() { return fibers_[current_]; }
  Warp& warp() { return warps_[current_ / kLanes]; }
  Barrier& barrier(int i) { return barriers_[i]; }
  int live() const { return live_; }

  // Whoever is the last to arrive lets the others go on.
  void arrive(Barrier& barrier, int members) {
    looks_ = 0;
    ++barrier.arrived;
    look(barrier, members);
  }
  void wait(Barrier& barrier, unsigned seen) {
    if (barrier.round != seen) return;
    barrier.waiting.push_back(static_cast<unsigned>(current_));
    go_on();
  }
  // A fiber has looked in vain for what another block does. Where none of this block has done
  // anything else for long, each look waits a little, so that the others have the processors.
  void yield() {
    if (++looks_ > 2 * fibers_.size()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    ready_.push_back(static_cast<unsigned>(current_));
    go_on();
  }
  void end_fiber() {
    Fiber& fiber = own();
    fiber.land(fiber.groups.size());
    --live_;
    look(warp().barrier, --warp().live);
    look(whole_, live_);
    if (live_ == 0) _longjmp(home_, 1);
    go_on();
    stop("a thread that had ended went on");
  }

  Barrier whole_;

 private:
  static void begin();
  std::uint32_t random() {  // xorshift
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    return random_ ^= random_ << 5;
  }
  void look(Barrier& barrier, int members) {
    if (barrier.arrived == 0 || barrier.arrived < members) return;
    barrier.arrived = 0;
    ++barrier.round;
    ready_.insert(ready_.end(), barrier.waiting.begin(), barrier.waiting.end());
    barrier.waiting.clear();
  }
  // To a fiber that can run, this one perhaps: in any order, so that what relies on one shows.
  void go_on() {
    if (++turns_ % (16 * fibers_.size()) == 0) sched_yield();
    if (ready_.empty()) stop("threads of a block wait at barriers that others do not reach");
    unsigned& place = ready_[random() % ready_.size()];
    const unsigned next = place;
    place = ready_.back();
    ready_.pop_back();
    if (next != current_) enter(next);
  }
  void enter(std::size_t next) {
    Fiber& from = own();
    if (_setjmp(from.state) != 0) return;
    jump(next);
  }
  [[noreturn]] void jump(std::size_t next) {
    current_ = next;
    threadIdx.x = static_cast<unsigned>(next);
    Fiber& to = own();
    if (to.started) _longjmp(to.state, 1);
    to.started = true;
    to.stack = stack_from_pool(false, nullptr);
    getcontext(&to.start);
    to.start.uc_stack.ss_sp = to.stack;
    to.start.uc_stack.ss_size = kStackBytes;
    to.start.uc_link = nullptr;
    makecontext(&to.start, &Block::begin, 0);
    setcontext(&to.start);
    stop("a fiber did not start");
  }

  const std::function<void()>& thread_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  Barrier barriers_[17];
  std::size_t current_ = 0, turns_ = 0;
  std::size_t looks_ = 0;  // since a fiber came to a barrier
  std::uint32_t random_;
  std::vector<unsigned> ready_;  // but for the one that runs
  int live_ = 0;
  jmp_buf home_;
};

thread_local Block* block = nullptr;

// What another block of a cluster has sent.
struct Sent {
  std::uint32_t to, barrier;
  float values[4];
  int count;
};
struct Inbox {
  std::mutex mutex;
  std::vector<Sent> sent;
};
// Arrivals of the blocks of a grid that is all resident, and of the threads of each cluster.
struct Meeting {
  Meeting(unsigned blocks, unsigned cluster)
      : blocks(blocks), cluster(cluster), inboxes(blocks), cluster_arrivals(blocks) {}

  unsigned blocks, cluster;
  std::atomic<unsigned> arrivals{0};
  std::vector<Inbox> inboxes;
  std::vector<std::atomic<unsigned>> cluster_arrivals;
};
thread_local Meeting* meeting = nullptr;
thread_local std::uint32_t rank = 0;  // of the block in its cluster
constexpr int kRankBit = 24;          // of an address in a cluster
alignas(1024) thread_local char shared[kSharedBytes];

void Block::begin() {
  block->thread_();
  block->end_fiber();
}
void Block::run() {
  block = this;
  std::memset(shared, 0xff, sizeof shared);
  if (_setjmp(home_) == 0) jump(0);
  block = nullptr;
}

}  // namespace

char* shared_memory() { return shared; }
std::uint32_t shared_address(const void* p) {
  const std::ptrdiff_t out = static_cast<const char*>(p) - shared;
  if (out != static_cast<std::int32_t>(out)) stop("an address that is not of shared memory");
  return static_cast<std::uint32_t>(out) + (rank << kRankBit);
}
char* shared_at(std::uint32_t address) {
  return shared + static_cast<std::int32_t>(address - (rank << kRankBit));
}

void yield() { block->yield(); }
void sync_block() {
  const unsigned seen = block->whole_.round;
  block->arrive(block->whole_, block->live());
  block->wait(block->whole_, seen);
}
void sync_warp() {
  Warp& warp = block->warp();
  const unsigned seen = warp.barrier.round;
  block->arrive(warp.barrier, warp.live);
  block->wait(warp.barrier, seen);
}
unsigned arrive_at_grid() {
  if (!meeting) stop("a barrier of a grid that was not launched as all resident");
  return meeting->arrivals++ / meeting->blocks;
}
bool grid_has_come(unsigned arrival) { return meeting->arrivals / meeting->blocks > arrival; }
std::uint32_t cluster_address(std::uint32_t address, int of) {
  if (address >> kRankBit != rank) stop("an address that is not of shared memory");
  return address + ((static_cast<std::uint32_t>(of) - rank) << kRankBit);
}
void send_to_block(std::uint32_t to, std::uint32_t barrier, const float* values, int count) {
  if (to >> kRankBit != barrier >> kRankBit) stop("a barrier that is not where values go");
  Sent sent{to, barrier, {}, count};
  std::copy(values, values + count, sent.values);
  Inbox& inbox =
      meeting->inboxes[blockIdx.x / meeting->cluster * meeting->cluster + (to >> kRankBit)];
  const std::lock_guard<std::mutex> lock(inbox.mutex);
  inbox.sent.push_back(sent);
}
void land_sent() {
  if (!meeting) return;
  Inbox& inbox = meeting->inboxes[blockIdx.x];
  const std::lock_guard<std::mutex> lock(inbox.mutex);
  for (const Sent& one : inbox.sent) {
    const std::size_t bytes = static_cast<std::size_t>(one.count) * sizeof(float);
    std::memcpy(&at<char>(one.to), one.values, bytes);
    auto& phases = at<ptx::Phases>(one.barrier);
    phases.bytes -= static_cast<int>(bytes);
    phases.look();
  }
  inbox.sent.clear();
}
void meet_cluster() {
  if (!meeting) stop("a cluster that was not launched as all resident");
  std::atomic<unsigned>& arrivals = meeting->cluster_arrivals[blockIdx.x / meeting->cluster];
  const unsigned all = meeting->cluster * blockDim.x;
  const unsigned round = arrivals++ / all;
  while (arrivals / all <= round) yield();
}
void arrive(int barrier, int threads) { block->arrive(block->barrier(barrier), threads); }
void arrive_and_wait(int barrier, int threads) {
  Barrier& one = block->barrier(barrier);
  const unsigned seen = one.round;
  block->arrive(one, threads);
  block->wait(one, seen);
}
void leave(const void* data, std::size_t bytes) {
  Warp& warp = block->warp();
  std::memcpy(warp.slots[warp.barrier.round % 2][lane()], data, bytes);
}
const void* left_by(int lane) {
  Warp& warp = block->warp();
  return warp.slots[(warp.barrier.round + 1) % 2][lane];
}
void begin_copy(void* to, const void* from, std::size_t bytes) {
  block->own().groups.back().push_back(
      {static_cast<char*>(to), static_cast<const char*>(from), bytes});
}
void end_group() { block->own().groups.emplace_back(); }
void await_groups(int pending) {
  Fiber& fiber = block->own();
  const std::size_t ended = fiber.groups.size() - 1, left = static_cast<std::size_t>(pending);
  if (ended > left) fiber.land(ended - left);
}

unsigned seed() {
  static const char* const given = std::getenv("SCANRNN_EMULATED_SEED");
  return given ? static_cast<unsigned>(std::atoi(given)) : 1;
}

void run_grid(const How& how, const std::function<void()>& thread) {
  const unsigned blocks = how.grid.x * how.grid.y * how.grid.z;
  std::atomic<unsigned> next{0};
  Meeting all(blocks, how.cluster);
  const auto work = [&] {
    meeting = how.all_resident ? &all : nullptr;
    for (unsigned i = next++; i < blocks; i = next++) {
      rank = i % how.cluster;
      Block(how, thread, i).run();
    }
  };
  const unsigned most = how.all_resident ? blocks : std::min<unsigned>(blocks, kBlocksAtOnce);
  std::vector<std::thread> team;
  for (unsigned i = 0; i < most; ++i) team.emplace_back(work);
  for (std::thread& member : team) member.join();
}

namespace ptx {
namespace {
using Packet = unsigned __attribute__((vector_size(16)));
}
void load_packet(unsigned (&out)[4], const void* from) {
  const Packet v = *static_cast<const volatile Packet*>(from);  // one load of 16 bytes
  for (int i = 0; i < 4; ++i) out[i] = v[i];
}
void store_packet(void* to, const unsigned (&in)[4]) {
  *static_cast<volatile Packet*>(to) = Packet{in[0], in[1], in[2], in[3]};
}
float from_half(std::uint16_t bits) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}
}  // namespace ptx

}  // namespace emulated
