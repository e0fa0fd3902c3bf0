// SPDX-License-Identifier: Apache-2.0
// The sources as the guards read them.
#pragma once

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace scanrnn::test {

namespace fs = std::filesystem;

inline fs::path root() { return SCANRNN_SOURCE_DIR; }

inline std::string text_of(const fs::path& path) {
  std::ifstream file(root() / path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Code alone: comments and the contents of strings are blanked, lines stay where they are.
inline std::string code_of(const fs::path& path) {
  const std::string text = text_of(path);
  std::string out = text;
  enum { code, line_comment, block_comment, string, character } state = code;
  bool escaped = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool in_a_word = i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]));
    if (state == code && c == '/' && next == '/') state = line_comment;
    if (state == code && c == '/' && next == '*') state = block_comment;
    const bool blank = state != code && c != '\n';
    if (state == line_comment && c == '\n') state = code;
    if (state == block_comment && c == '/' && i > 0 && text[i - 1] == '*') state = code;
    if (state == string || state == character) {
      if (!escaped && c == (state == string ? '"' : '\'')) state = code;
      escaped = !escaped && c == '\\';
    } else if (state == code && !blank && (c == '"' || (c == '\'' && !in_a_word))) {
      state = c == '"' ? string : character;
    }
    if (blank) out[i] = ' ';
  }
  return out;
}

// The files of a folder, and of those in it, whose names end so.
inline std::vector<fs::path> sources(const fs::path& folder,
                                     const std::set<std::string>& kinds = {".h", ".cpp", ".cu",
                                                                           ".cuh", ".def"}) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::recursive_directory_iterator(root() / folder)) {
    if (entry.is_regular_file() && kinds.count(entry.path().extension().string())) {
      out.push_back(fs::relative(entry.path(), root()));
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Line and text of each match in the code of a file.
inline std::vector<std::string> matches(const fs::path& path, const std::regex& pattern) {
  std::vector<std::string> out;
  std::istringstream lines(code_of(path));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (std::regex_search(line, pattern)) {
      out.push_back(path.string() + ":" + std::to_string(number) + ": " + line);
    }
  }
  return out;
}

}  // namespace scanrnn::test
