// SPDX-License-Identifier: Apache-2.0
// How many kernels there are, and that none of them knows a cell. Switches multiply: a new factor
// is a decision, so it shows here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "guards/source.h"
#include "scanrnn/dispatch/tiles.h"
#include "support/cases.h"

namespace scanrnn::test {
namespace {

int count(const std::string& text, const std::regex& pattern) {
  return static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), pattern),
                                        std::sregex_iterator()));
}

std::string header_of(const CellInfo& cell) {
  std::string name = cell.name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return "scanrnn/cells/" + name + ".h";
}

// On the CPU a kernel is one (cell, variant, pass, type); strategies and domains are inside it,
// dtypes are converted outside.
TEST(Guard, BudgetOfCpuKernels) {
  const std::string header =
      code_of("lib/src/cpu/kernels/table.h") + code_of("lib/src/cpu/dense.h");
  const std::regex pointer(R"(\(\*[a-z_]+\)\()");
  const auto pointers = [&](const char* name) {
    const auto begin = header.find(std::string("struct ") + name);
    EXPECT_NE(begin, std::string::npos) << name;
    const std::string body = header.substr(begin, header.find("\n};", begin) - begin);
    return count(body, pointer);
  };
  const auto all = all_variants();
  const int dense = static_cast<int>(std::count_if(all.begin(), all.end(), is_dense));
  const int others_of_cells = static_cast<int>(all.size()) - dense;  // linear and diagonal
  const int types = 2;
  const int of_cells = types * (others_of_cells * 2 + dense * pointers("CpuDenseKernels"));
  const int others = types * (pointers("CpuDenseTools") + pointers("CpuTypeKernels")) +
                     2 * types * pointers("CpuScanKernels");  // and complex ones
  EXPECT_EQ(pointers("CpuCellKernels"), 4) << "forward and backward, and of vectors two small ones";
  EXPECT_EQ(pointers("CpuDenseKernels"), 2) << "forward and backward";
  EXPECT_LE(of_cells, 88) << "for one instruction set";
  EXPECT_LE(others, 30) << "for one instruction set";
}

// A cell is its header and its line in cells.def; kernels are made of any.
TEST(Guard, NoKernelKnowsACell) {
  std::string names, headers;
  for (const CellInfo& cell : cells()) {
    names += (names.empty() ? "" : "|") + cell.name;
    headers += (headers.empty() ? "" : "|") + header_of(cell);
  }
  const std::regex cell("\\b(" + names + ")\\b"), header("include.*(" + headers + ")");
  EXPECT_TRUE(std::regex_search("kernel<cell::GRU<Only>>()", cell));
  EXPECT_TRUE(std::regex_search("#include \"scanrnn/cells/gru.h\"", header));
  EXPECT_FALSE(std::regex_search("SCANRNN_DENSE_CELL(name)", cell));
  int files = 0;
  for (const char* folder : {"lib/src/cpu/kernels", "lib/src/cuda/kernels", "scan/include"}) {
    for (const fs::path& path : sources(folder)) {
      ++files;
      for (const std::string& line : matches(path, cell)) ADD_FAILURE() << line;
      EXPECT_FALSE(std::regex_search(text_of(path), header)) << path << " includes a cell";
    }
  }
  EXPECT_GT(files, 50) << "the sources were not found from " << root();
}

// CUDA's by their text: functions, most of them templates. How many kernels the build makes of them
// is counted where CUDA is built, by tests/package/kernels.py.
TEST(Guard, BudgetOfCudaKernels) {
  const std::regex kernel(R"(\b__global__\b)");
  const auto kernels_in = [&](const char* folder) {
    int out = 0;
    for (const fs::path& path : sources(folder)) out += count(code_of(path), kernel);
    return out;
  };
  EXPECT_LE(kernels_in("scan/include"), 11);
  EXPECT_LE(kernels_in("lib/src"), 42);
  EXPECT_GT(kernels_in("lib/src"), 0) << "the pattern finds nothing any more";
}

// The kernels of dense cells as the build makes them: of the lists in tiles.h, for each variant and
// type. Two ways of multiplying in float32; in float64 there is no persistent kernel.
TEST(Guard, BudgetOfPersistentKernels) {
  using namespace dispatch;
  const auto both = [](const auto& forward, const auto& backward, int storage_bytes) {
    const auto own = [&](const auto& tile) { return tile.serves(storage_bytes); };
    return static_cast<int>(std::count_if(std::begin(forward), std::end(forward), own) +
                            std::count_if(std::begin(backward), std::end(backward), own));
  };
  constexpr int kLines = 3;  // kinds: whole, cut and those of a ragged batch
  const auto cut = [&](int bytes) {
    return kLines * both(kPersistentForward, kPersistentBackward, bytes) +
           both(kChainForward, kChainBackward, bytes);
  };
  const int in_block =
      kLines * static_cast<int>(std::size(kPersistentBlockUnits));  // forward, in halves
  const int alone = 2 * in_block;                                   // and backward
  const int by_lines = both(kLinesForward, kLinesBackward, 2);
  int variants = 0, walks = 0;  // walks by whole lines, of all variants
  for (const CellInfo& cell : cells()) {
    if (cell.recurrence != Recurrence::dense) continue;
    const std::string code = code_of("lib/include/" + header_of(cell));
    const int own = static_cast<int>(cell.variants.size());
    variants += own;
    walks += own * (count(code, std::regex("kByLines = true")) +
                    count(code, std::regex("kResets = true")));
  }
  const int half = variants * (cut(2) + in_block + alone) + walks * by_lines;
  const int single = variants * (2 * cut(4) + alone) + walks * 2 * by_lines;
  EXPECT_LE(2 * half + single, 2312);
  EXPECT_EQ(walks, 5) << "RNN of two kinds, LSTM and GRU by norms, and GRU by its reset";
}

}  // namespace
}  // namespace scanrnn::test
