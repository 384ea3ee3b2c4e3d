#include "src/run/data/file_pattern.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <glob.h>
#include <gtest/gtest.h>

#include "tests/support/folder.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;

// By the C library's own, which leaves out in silence what it cannot read.
std::vector<fs::path> globbed(const fs::path& pattern) {
  glob_t matches{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
    paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  }
  ::globfree(&matches);
  std::ranges::sort(paths);
  return paths;
}

TEST(FilePattern, MatchesWhatAShellDoes) {
  const test::Folder folder;
  const std::vector<std::string> names = {
      "a", "b", "ab", "a.txt", "b.txt", ".a", "[a]", "-", "c d"};
  for (const std::string& outer : names) {
    fs::create_directory(folder / outer);
    for (const std::string& inner : names) {
      std::ofstream(folder / outer / inner) << "x";
    }
    std::ofstream(folder / (outer + "_file")) << "x";
  }
  fs::create_symlink("nowhere", folder / "gone");
  const std::vector<std::string> parts = {
      "*",
      "?",
      "a*",
      "*.txt",
      "[ab]",
      "[!a]*",
      ".a*",
      "a",
      "b.txt",
      "[a]",
      "none",
      "*_file",
      "go*",
      "[a-b]?",
      "c d",
      "\\*"};
  std::mt19937 random(1);
  const auto drawn = [&] {
    return parts[std::uniform_int_distribution<std::size_t>(0, parts.size() - 1)(random)];
  };
  int some = 0;
  for (int i = 0; i < 500; ++i) {
    const fs::path pattern = i % 3 == 0 ? folder / drawn() : folder / drawn() / drawn();
    if (!is_pattern(pattern)) {
      continue;
    }
    const std::vector<fs::path> found = matches_of(pattern);
    EXPECT_EQ(found, globbed(pattern)) << pattern;
    some += found.empty() ? 0 : 1;
  }
  EXPECT_GT(some, 50);
}

TEST(FilePattern, IsRelativeToTheFolderOfTheProcess) {
  const test::Folder folder;
  std::ofstream(folder / "one.txt") << "x";
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  const std::vector<fs::path> found = matches_of("*.txt");
  fs::current_path(before);
  EXPECT_EQ(found, std::vector<fs::path>{"one.txt"});
}

}  // namespace
}  // namespace paradyse
