// Tables are as wide as they may be, and say what they leave out.
#include "src/plan/base/table_text.h"

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paradyse {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::vector<std::vector<std::string>> kRows = {
    {"plan", "seconds", "MFU", "fits"},
    {"UlyssesZ", "1.5", "40.0 %", "yes"},
    {"DataZ", "12", "", "no"}};

TEST(TableText, HasAllColumnsWhereThereIsRoom) {
  const std::string all =
      "plan      seconds     MFU  fits\n"
      "UlyssesZ      1.5  40.0 %   yes\n"
      "DataZ          12            no\n";
  EXPECT_EQ(table_text(kRows, {}), all);
  EXPECT_EQ(table_text(kRows, {.width = 31}), all);
}

TEST(TableText, DropsWhatMattersLeastAndSaysSo) {
  EXPECT_EQ(
      table_text(kRows, {.width = 30, .drop = {"no such", "MFU"}}),
      "plan      seconds  fits\n"
      "UlyssesZ      1.5   yes\n"
      "DataZ          12    no\n"
      "left out, --verbose shows: MFU\n");
  EXPECT_THAT(table_text(kRows, {.width = 30}), HasSubstr("shows: fits\n"));  // the last
}

TEST(TableText, MarksTheBest) {
  EXPECT_EQ(
      table_text({{"a", "b"}, {"x", "1"}, {"y", "2"}}, {.best = 2}), "  a  b\n  x  1\n* y  2\n");
}

TEST(TableText, ContinuesLongNames) {
  EXPECT_EQ(
      table_text({{"plan", "s"}, {"mix: 2 x UlyssesZ+gather, 1 x DataZ", "1"}}, {.width = 24}),
      "plan                   s\n"
      "mix: 2 x               1\n"
      "  UlyssesZ+gather, 1\n"
      "  x DataZ\n");
}

TEST(TableText, IsNoWiderThanAsked) {
  std::mt19937 random(3);
  const auto upto = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most + 1));
  };
  for (int i = 0; i < 300; ++i) {
    std::vector<std::vector<std::string>> rows(static_cast<std::size_t>(1 + upto(4)));
    const int columns = 2 + upto(8);
    for (auto& row : rows) {
      for (int c = 0; c < columns; ++c) {
        std::string cell;
        for (int word = upto(c == 0 ? 12 : 2); word >= 0; --word) {
          cell += std::string(static_cast<std::size_t>(1 + upto(5)), 'x') + (word > 0 ? " " : "");
        }
        row.push_back(cell);
      }
    }
    const std::string text = table_text(rows, {.width = 80, .best = rows.size() - 1});
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 80U) << text;
      EXPECT_THAT(line, Not(testing::EndsWith(" ")));
    }
    EXPECT_EQ(std::ranges::count(text, '*'), 1);
  }
}

}  // namespace
}  // namespace paradyse
