// SPDX-License-Identifier: Apache-2.0
// The one list of tile shapes: the planner picks from it, the launchers instantiate it.
#pragma once

#include <cstdint>

namespace scanrnn::dispatch {

// a / b, rounded up.
constexpr std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// How many of `count` are in each of the fewest groups of at most so many, of equal size but the
// last one.
constexpr std::int64_t in_equal_groups(std::int64_t count, std::int64_t most) {
  return ceiling(count, ceiling(count, most));
}

// CPU. A projection's tile is as many tokens as keep its pre-activations in the shared cache and
// still pack the weights few times, and more where these are narrow, so that threads seldom meet; a
// chunk of the parallel scan is what one thread reduces to one element.
inline constexpr std::int64_t kCpuTileTokens = 2048, kCpuTileValues = 1 << 17;
// Where a step's rows (B*H) are few for each thread, a thread takes whole tiles, smaller ones, and
// walks each in its turn: what it has projected then never leaves its cache, which costs most where
// cores share none. A walk costs about as much as this many multiply-adds a pre-activation, and up
// to twice as much: only one thread walks at a time, so the products must take the others at least
// twice as long as that; and a thread must have some tiles, since at both ends of a call it waits.
inline constexpr std::int64_t kCpuTurnTokens = 256, kCpuTurnRows = 1024, kCpuWalkCost = 8;
inline constexpr std::int64_t kCpuTurns = 4;
// Multiply-adds worth waking a thread for. They take about 10 us, as waking one does at best; on a
// shared virtual machine it has been seen to take 300.
inline constexpr std::int64_t kCpuThreadWork = 1 << 18;
// A step loop's weights are packed. Its tile has as many tokens as share a panel of them in the
// nearer cache, or one step, where its own lines are enough for that.
inline constexpr std::int64_t kCpuStepTileTokens = 256;
inline constexpr std::int64_t kCpuStepLines = 8;
// Layer calls at the same time, each a thread's own: where its product with the state in a step is
// at most so many multiply-adds, threads that shared the step would wait longer than they work. A
// chain goes on by so many parts, of so many steps at least.
inline constexpr int kMostAtOnce = 8;
inline constexpr std::int64_t kCpuOwnWork = 1 << 16;
inline constexpr std::int64_t kCpuParts = 16, kCpuMinPart = 8;
inline constexpr std::int64_t kCpuMinChunk = 16;
inline constexpr std::int64_t kCpuMaxChunk = 256;

// CUDA. Warps of a block that hold one tile of time, each a few steps of 32 rows; of the device
// kernel at most.
inline constexpr int kCudaBlockWarps = 8;
inline constexpr int kCudaDeviceWarps = 16;
// Whether the bare recurrence walks 16-bit tensors by pairs of adjacent units: twice the bytes a
// request and fewer instructions for each, but half the columns, of which there must be enough
// where time is not split over blocks. `rows` is B*H.
constexpr bool cuda_pairs_pay(std::int64_t rows, std::int64_t units, bool across_blocks) {
  return across_blocks || rows >= 256 * units;
}

// CUDA, bare recurrence: steps up to which rows beside one another are walked where they lie, since
// no tile is worth setting up.
inline constexpr std::int64_t kCudaShortSteps = 8;
// CUDA, bare recurrence: rows of a line up to which time may lie along lanes. A warp's tile is
// about so many elements of a tensor, and a block of kCudaLaneWarps may share a longer one.
inline constexpr std::int64_t kCudaLaneRows = 16;
inline constexpr int kCudaLaneWarps = 8;
constexpr std::int64_t cuda_lane_elements(int storage_bytes) {
  return storage_bytes > 2 ? 2944 / storage_bytes : 992;
}
// Whether a lane walks a line of adjacent steps by itself: lines that are short and fill lanes in
// this way, too, or so short that little of a warp's tile would be theirs.
constexpr bool cuda_lane_has_line(std::int64_t steps, std::int64_t lines, int storage_bytes,
                                  std::int64_t units) {
  return steps <= 32 || (steps * storage_bytes <= 1024 && lines >= 32 * units);
}

// CUDA, linear cells, direct: whether tensor cores make a step, which read the weights once for all
// of its lines.
constexpr bool cuda_direct_step(std::int64_t steps, std::int64_t lines, int storage_bytes) {
  return steps == 1 && lines > 1 && lines <= 16 && storage_bytes == 2;
}

// CUDA, dense cells, step loop: bytes of R that the second level cache keeps from step to step.
inline constexpr std::int64_t kCudaCachedWeights = std::int64_t{30} << 20;
// Lines up to which one kernel makes a step, products and all. Without tensor cores, which round
// float32, more than four take longer. A block reads h of all its lines for eight units: of more
// than eight lines a product of 16 bits takes less time where R comes from memory, one of TF32
// more. For 17 lines and more that is so where the cache keeps a half of R, and where nine of ten
// blocks that a device of so many multiprocessors has room for, two on each, are there.
constexpr std::int64_t cuda_fused_lines(int storage_bytes, bool split_products, std::int64_t gates,
                                        std::int64_t hidden, std::int64_t units) {
  constexpr std::int64_t kTwoHalves = std::int64_t{72} << 20;
  if (storage_bytes > 4 || split_products) return 4;
  const std::int64_t bytes = gates * hidden * hidden * storage_bytes;
  const bool cached = bytes <= kCudaCachedWeights;
  if (storage_bytes < 4 || hidden % 4 != 0) return cached ? 16 : 8;
  const std::int64_t blocks = (hidden + 7) / 8, wave = 2 * units;
  const std::int64_t room = (blocks + wave - 1) / wave * wave;
  return !cached && bytes <= kTwoHalves && 10 * blocks >= 9 * room ? 32 : 16;
}

// CUDA, dense cells: what one warp of a persistent kernel keeps of R, and how it works on it.
struct PersistentTile {
  int unit_blocks;        // times 8 units: forward with all their gates, backward their columns
  int chunks;             // of the sum, of 64 bytes each
  int fetched;            // chunks received at a time; divides `chunks`
  int items;              // units times lines that one thread steps
  int shared_chunks = 0;  // how many of the chunks keep their weights in shared memory
  bool wide = false;      // for elements of 32 bits alone: of 16 another one takes no longer

  constexpr bool serves(std::int64_t storage_bytes) const { return !wide || storage_bytes == 4; }
};
inline constexpr int kPersistentWarps = 8;  // of a block
// Bytes of a fragment's words of all lanes of a block's warps.
inline constexpr std::int64_t kPersistentFragment = 32 * kPersistentWarps * 32;
// Lines of a block up to which exact products in float32 are multiply-adds; of more, three products
// of tensor cores each. So many at once: `tiles` are the fragments of a chunk, and of four, a
// lane's sums have room for two lines.
inline constexpr int kPersistentFewLines = 4;
constexpr int persistent_few_at_once(std::int64_t tiles) { return tiles < 4 ? 4 : 2; }
inline constexpr PersistentTile kPersistentForward[] = {
    {2, 4, 4, 1},          {2, 4, 4, 2},          {2, 4, 4, 4, 2},       {2, 2, 2, 1},
    {2, 6, 6, 1, 2},       {2, 6, 6, 2, 2},       {2, 8, 8, 1, 4},       {2, 8, 8, 2, 4},
    {2, 2, 2, 2, 0, true}, {1, 4, 4, 1, 0, true}, {1, 6, 6, 1, 0, true}, {1, 8, 8, 2, 0, true}};
inline constexpr PersistentTile kPersistentBackward[] = {
    {2, 16, 16, 1, 6}, {2, 16, 16, 2, 8}, {2, 12, 12, 1},       {2, 12, 12, 2, 2},
    {4, 8, 8, 1},      {2, 8, 8, 1},      {2, 4, 4, 1},         {2, 24, 12, 1, 12},
    {2, 32, 8, 1, 16}, {4, 8, 8, 2, 2},   {2, 8, 8, 2, 0, true}};
// The same of a kernel for a chain of layers, whose sums are twice as long.
inline constexpr PersistentTile kChainForward[] = {
    {2, 4, 4, 1}, {2, 4, 4, 2}, {2, 2, 2, 1}, {2, 2, 2, 2, 0, true}};
inline constexpr PersistentTile kChainBackward[] = {
    {2, 16, 16, 1, 6}, {2, 16, 16, 2, 8}, {4, 8, 8, 1}, {2, 8, 8, 1}, {2, 8, 8, 2}, {2, 4, 4, 1}};
template <bool kBackward, bool kChain>
constexpr const auto& persistent_tiles() {
  if constexpr (kBackward && kChain) {
    return kChainBackward;
  } else if constexpr (kBackward) {
    return kPersistentBackward;
  } else if constexpr (kChain) {
    return kChainForward;
  } else {
    return kPersistentForward;
  }
}

// And of one for a walk by whole lines, whose items have more to keep. At each step of one with
// norms, so many totals of a line pass between the blocks: two words for each so many units, which
// are one block's.
inline constexpr PersistentTile kLinesForward[] = {{2, 2, 2, 1},    {2, 2, 2, 2},   {2, 3, 3, 1},
                                                   {2, 4, 4, 1},    {2, 4, 4, 2},   {2, 6, 6, 1, 3},
                                                   {2, 6, 6, 2, 4}, {2, 8, 8, 1, 5}};
inline constexpr PersistentTile kLinesBackward[] = {
    {2, 4, 4, 1},      {2, 8, 8, 1},      {2, 8, 4, 2, 4},    {2, 12, 12, 1, 2},
    {2, 16, 16, 1, 6}, {2, 16, 8, 2, 10}, {2, 24, 12, 1, 12}, {2, 32, 8, 1, 16}};
template <bool kBackward>
constexpr const auto& line_tiles() {
  if constexpr (kBackward) {
    return kLinesBackward;
  } else {
    return kLinesForward;
  }
}
inline constexpr int kLineTotals = 2, kLineTotalUnits = 16;
// Words of one of them for a line, whole pieces of 16 bytes.
constexpr std::int64_t line_total_words(std::int64_t units) {
  return (units + 2 * kLineTotalUnits - 1) / (2 * kLineTotalUnits) * 4;
}

// Small layers: a block that has all of R, or of a head's. Each of its warps has one of these
// numbers times 8 units; of a thread's registers so many hold weights, and what finds no room there
// stays in shared memory. By tensor cores, forward in 16-bit types, it walks a few lines.
inline constexpr int kPersistentBlockUnits[] = {1, 2};
struct PersistentBlock {
  int lines;          // at most, so that a thread steps one unit of one line
  int chunks, tiles;  // of the sum, of 64 bytes each; of a warp's rows, of 16 each
  int shared_chunks;
  std::int64_t shared_bytes;
};
constexpr PersistentBlock persistent_block(int unit_blocks, int gates, int element_bytes) {
  constexpr int kRegisters = 160;
  PersistentBlock out{};
  out.lines = 32 / (8 * unit_blocks);
  out.chunks = kPersistentWarps * 8 * unit_blocks * element_bytes / 64;
  out.tiles = (unit_blocks * gates + 1) / 2;
  const int kept = kRegisters / (8 * out.tiles);
  out.shared_chunks = out.chunks > kept ? out.chunks - kept : 0;
  out.shared_bytes = out.shared_chunks * out.tiles * kPersistentFragment +
                     2 * out.lines * (out.chunks + 1) * 64 +
                     kPersistentWarps * out.lines * (8 * unit_blocks + 1) * 16;
  return out;
}

// By multiply-adds it walks one line. A piece is four values of the sum, and of those each of four
// lanes has every fourth.
struct PersistentAlone {
  int units, weights;  // of the block; of a thread
  int pieces, shared_pieces;
  int shared_bytes;
  bool wide;     // more weights than threads have registers for, if all have as many
  int resident;  // blocks of a multiprocessor
};
constexpr PersistentAlone persistent_alone(int unit_blocks, int gates, bool backward) {
  const int registers = backward ? 184 : 168;
  PersistentAlone out{};
  out.units = 8 * unit_blocks * kPersistentWarps;
  const int values = (backward ? gates : 1) * out.units,
            rows = unit_blocks * (backward ? 1 : gates);
  out.pieces = values / 16;
  out.weights = out.pieces * rows * 4;
  const int kept = registers / (4 * rows);
  out.shared_pieces = out.pieces > kept ? out.pieces - kept : 0;
  out.shared_bytes = out.shared_pieces * rows * 32 * kPersistentWarps * 16 + values * 4 +
                     out.units * (backward ? 4 : 16);
  out.wide = out.weights > 96;
  out.resident = unit_blocks == 1 ? 2 : 1;
  return out;
}

// Shared memory for the weights of a tile whose units have so many rows of them.
constexpr std::int64_t persistent_shared_bytes(const PersistentTile& tile, int rows) {
  return tile.shared_chunks * ((tile.unit_blocks * rows + 1) / 2) * kPersistentFragment;
}
inline constexpr int kPersistentMaxHidden = 1 << 20;  // 32-bit offsets inside a row of R
// Registers of a multiprocessor that can hold weights.
inline constexpr std::int64_t kPersistentWeightBytes = 32 * kPersistentWarps * 192 * 4;
// Memory for the exchange of one launch; a longer sequence takes several, and loads R again.
inline constexpr std::int64_t kPersistentExchangeBytes = std::int64_t{64} << 20;
// Steps from which one launch that loads R first beats one or two launches a step.
inline constexpr std::int64_t kPersistentMinSteps = 5;

}  // namespace scanrnn::dispatch
