// SPDX-License-Identifier: Apache-2.0
// House style that no formatter checks: how sentences open, how long functions and files are.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "guards/source.h"

namespace scanrnn::test {
namespace {

// Whoever reads this has English as a second language: subject, verb, object. The word has a
// capital where it opens a sentence, and nowhere else.
const std::regex kInverted(R"((^|[^A-Za-z0-9_])Of(\s|$))");

TEST(Style, NoSentenceIsInverted) {
  for (const char* line : {"// Of", "x. Of all", "\"\"\"Of a token.\"\"\"", "| (Of LSTM a pair)"}) {
    EXPECT_TRUE(std::regex_search(line, kInverted)) << line;
  }
  for (const char* line : {"kernels of a cell", "LineOf<Source>", "table<CellOf, Options>()"}) {
    EXPECT_FALSE(std::regex_search(line, kInverted)) << line;
  }
  std::vector<fs::path> files{"README.md", "CONTRIBUTING.md"};
  for (const char* folder : {"scan", "dispatch", "lib", "python", "bench", "docs", "tests"}) {
    for (const fs::path& path : sources(folder, {".h", ".cuh", ".cu", ".cpp", ".py", ".md"})) {
      const bool own = path.string().find("third_party") == std::string::npos;
      if (own && path != "tests/guards/style_test.cpp") files.push_back(path);
    }
  }
  EXPECT_GT(files.size(), 300u) << "the sources were not found from " << root();
  for (const fs::path& path : files) {
    std::istringstream text(text_of(path));
    int number = 0;
    for (std::string line; std::getline(text, line);) {
      ++number;
      EXPECT_FALSE(std::regex_search(line, kInverted))
          << path.string() << ":" << number << ": " << line;
    }
  }
}

// A function: where its head begins, the lines of it, and the head.
struct Function {
  int first = 0, lines = 0;
  std::string head;
};

bool opens_function(const std::string& head) {
  static const std::regex end(R"(\)\s*((const|override|noexcept|final|mutable)\s*)*(->[^{]*)?$)");
  const auto last = head.find_last_not_of(" \t\n");
  if (last == std::string::npos) return true;  // after a member's initialiser in braces
  return std::regex_search(head.substr(0, last + 1), end);
}

// What preprocessor directives say, blanked.
std::string without_directives(std::string code) {
  bool in_one = false;
  for (std::size_t begin = 0; begin < code.size();) {
    const std::size_t end = std::min(code.find('\n', begin), code.size());
    const std::size_t text = code.find_first_not_of(" \t", begin);
    in_one = in_one || (text < end && code[text] == '#');
    const bool goes_on = end > begin && code[end - 1] == '\\';
    if (in_one)
      std::fill(code.begin() + static_cast<std::ptrdiff_t>(begin),
                code.begin() + static_cast<std::ptrdiff_t>(end), ' ');
    in_one = in_one && goes_on;
    begin = end + 1;
  }
  return code;
}

// Functions of C++: blocks of namespaces and classes are gone through, others are one function
// each, lambdas and all.
std::vector<Function> cpp_functions(const std::string& text) {
  std::vector<Function> out;
  Function now;
  int line = 1, depth = 0;  // depth: blocks of the function
  for (const char c : text) {
    if (c == '\n') ++line;
    const bool blank = c == ' ' || c == '\n';
    if (depth > 0) {
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (depth == 0) {
        now.lines = line - now.first + 1;
        out.push_back(now);
        now = {};
      }
    } else if (c == '{' && opens_function(now.head)) {
      if (now.head.empty()) now.first = line;
      depth = 1;
    } else if (c == ';' || c == '{' || c == '}') {
      now = {};
    } else if (!blank || !now.head.empty()) {
      if (now.head.empty()) now.first = line;
      now.head += blank ? ' ' : c;
    }
  }
  return out;
}

// Functions of Python, the inner ones as part of the outer.
std::vector<Function> python_functions(const std::string& text) {
  static const std::regex def(R"(^( *)(async )?def (\w+).*)");
  std::vector<Function> out;
  std::istringstream lines(text);
  Function now;
  std::size_t indent = 0;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::size_t own = line.find_first_not_of(' ');
    if (own == std::string::npos) continue;
    std::smatch found;
    if (now.first > 0 && own <= indent && line[own] != ')') {
      out.push_back(now);
      now = {};
    }
    if (now.first == 0 && std::regex_match(line, found, def)) {
      indent = own;
      now = {number, 0, line};
    }
    if (now.first > 0) now.lines = number - now.first + 1;
  }
  if (now.first > 0) out.push_back(now);
  return out;
}

TEST(Style, FunctionsAreFound) {
  const auto cpp = cpp_functions(
      "namespace a {\nstruct B final : C<(1 > 0)> {\n  int d{1};\n  template <class T>\n"
      "  int f(T t) const {\n    if (t) {\n    }\n  }\n  B() : d{2} {\n  }\n};\n"
      "auto g(int x) -> int {\n  return x;\n}\nint t[] = {1, 2};\n}\n");
  std::map<int, int> lines;
  for (const Function& f : cpp) lines[f.first] = f.lines;
  EXPECT_EQ(lines[4], 5);
  EXPECT_EQ(lines[9], 2);
  EXPECT_EQ(lines[12], 3);
  const auto python = python_functions(
      "class A:\n    def f(\n        self,\n    ) -> None:\n        def g():\n            pass\n\n"
      "        return g\n\n    x = 1\n\n\nasync def h(): ...\n");
  ASSERT_EQ(python.size(), 2u);
  EXPECT_EQ(python[0].lines, 7);
  EXPECT_EQ(python[1].first, 13);
}

// The name of a function in its head: what stands before the first bracket, but for attributes.
std::string name_of(const std::string& head) {
  static const std::regex name(R"((\w+)\s*\()");
  for (std::sregex_iterator found(head.begin(), head.end(), name), none; found != none; ++found) {
    if ((*found)[1].str().compare(0, 2, "__") != 0) return (*found)[1];
  }
  return "";
}

// Longer ones, and why they are.
const std::map<std::string, std::string> kLongFunctions{
    {"dispatch/src/terms.cpp: name", "a table: the words for each term"},
    {"python/scanrnn/__main__.py: parser", "a table: the commands and their options"},
};

TEST(Style, FunctionsFitOnAScreen) {
  constexpr int kMost = 80;
  std::set<std::string> longer;
  int functions = 0;
  const auto look = [&](const fs::path& path, const std::vector<Function>& found) {
    for (const Function& f : found) {
      ++functions;
      if (f.lines <= kMost) continue;
      const std::string name = path.string() + ": " + name_of(f.head);
      longer.insert(name);
      EXPECT_TRUE(kLongFunctions.count(name)) << name << " has " << f.lines << " lines";
    }
  };
  for (const char* folder : {"scan", "dispatch", "lib", "python"}) {
    for (const fs::path& path : sources(folder, {".h", ".cpp", ".cu", ".cuh"})) {
      if (path.string().find("third_party") != std::string::npos) continue;
      look(path, cpp_functions(without_directives(code_of(path))));
    }
    for (const fs::path& path : sources(folder, {".py"})) {
      look(path, python_functions(text_of(path)));
    }
  }
  EXPECT_GT(functions, 1500) << "the sources were not found from " << root();
  for (const auto& [name, reason] : kLongFunctions) {
    EXPECT_TRUE(longer.count(name)) << name << " is not that long any more: " << reason;
  }
}

TEST(Style, FilesAreShort) {
  constexpr auto kMost = 400;
  int files = 0;
  for (const char* folder : {"scan", "dispatch", "lib", "python", "bench", "tests"}) {
    for (const fs::path& path : sources(folder, {".h", ".cuh", ".cu", ".cpp", ".py"})) {
      if (path.string().find("third_party") != std::string::npos) continue;
      ++files;
      const std::string text = text_of(path);
      EXPECT_LE(std::count(text.begin(), text.end(), '\n'), kMost) << path.string();
    }
  }
  EXPECT_GT(files, 300) << "the sources were not found from " << root();
}

}  // namespace
}  // namespace scanrnn::test
