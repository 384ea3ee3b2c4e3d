#include "src/plan/base/text_match.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/plan/base/json_node.h"
#include "src/plan/base/json_text.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

// All strings one edit away from `word`, over the letters abc and at most `max_size` long.
std::vector<std::string> one_edit_away(const std::string& word, std::size_t max_size) {
  std::vector<std::string> edits;
  for (std::size_t i = 0; i <= word.size(); ++i) {
    for (const char letter : {'a', 'b', 'c'}) {
      if (word.size() < max_size) {
        edits.push_back(word.substr(0, i) + letter + word.substr(i));
      }
      if (i < word.size()) {
        edits.push_back(word.substr(0, i) + letter + word.substr(i + 1));
      }
    }
    if (i < word.size()) {
      edits.push_back(word.substr(0, i) + word.substr(i + 1));
    }
    if (i + 1 < word.size()) {
      std::string swapped = word;
      std::swap(swapped[i], swapped[i + 1]);
      edits.push_back(swapped);
    }
  }
  return edits;
}

// The slow truth: the length of the shortest chain of edits, found by walking all of them.
std::map<std::string, std::size_t> distances_from(const std::string& word, std::size_t max_size) {
  std::map<std::string, std::size_t> distances{{word, 0}};
  std::deque<std::string> open{word};
  while (!open.empty()) {
    const std::string here = open.front();
    open.pop_front();
    const std::size_t next = distances[here] + 1;
    for (const std::string& edit : one_edit_away(here, max_size)) {
      if (distances.emplace(edit, next).second) {
        open.push_back(edit);
      }
    }
  }
  return distances;
}

// The nearest name is one with the least distance, and is there just when that is near enough.
TEST(TextMatch, AgreesWithWalkingAllEdits) {
  constexpr std::size_t kWord = 4;  // longest word; a chain may need a longer one between
  const auto words = distances_from("", kWord);
  for (const auto& [word, unused] : words) {
    const auto distances = distances_from(word, kWord + 1);
    for (const auto& [candidate, unused_too] : words) {
      const std::vector<std::string> only{candidate};
      const bool near = distances.at(candidate) <= std::max<std::size_t>(2, word.size() / 3);
      ASSERT_EQ(nearest_name(word, only), near ? candidate : "")
          << '"' << word << "\" and \"" << candidate << "\" are " << distances.at(candidate);
    }
  }
}

TEST(TextMatch, PrefersTheLeastDistanceAndThenTheFirst) {
  const std::vector<std::string> names{"layer", "later", "player", "lair"};
  EXPECT_EQ(nearest_name("layer", names), "layer");
  EXPECT_EQ(nearest_name("latre", names), "later");
  EXPECT_EQ(nearest_name("laxer", names), "layer");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("layer", {}), "");
}

TEST(TextMatch, AllowsAThirdOfALongWord) {
  const std::vector<std::string> names{"num_key_value_heads"};  // 19 letters
  EXPECT_EQ(nearest_name("numkeyvalueheads", names), names[0]);
  EXPECT_EQ(nearest_name("num_kv_heads", names), "");  // 12 letters allow 4; it is 7 away
  EXPECT_EQ(nearest_name("vocab_size", names), "");
}

TEST(TextMatch, AsksAQuestionOnlyWhenThereIsOne) {
  const std::vector<std::string> names{"hidden_size"};
  EXPECT_EQ(did_you_mean("hiden_size", names), " (did you mean 'hidden_size'?)");
  EXPECT_EQ(did_you_mean("rope", names), "");
}

TEST(TextMatch, AnExcerptIsShortAndPlain) {
  using nlohmann::json;
  EXPECT_EQ(excerpt(nullptr), "null");
  EXPECT_EQ(excerpt(-3), "-3");
  EXPECT_EQ(excerpt("a\x1b\xc3\xa9"), "\"a\\u001b\\u00e9\"");
  EXPECT_EQ(excerpt("\xff"), "\"\\ufffd\"");  // no UTF-8
  EXPECT_EQ(excerpt(json::array({1, "b"})), "[1,\"b\"]");
  EXPECT_EQ(excerpt(json{{"a", 1}}), "{\"a\":1}");
  EXPECT_EQ(excerpt(json::array()), "[]");
  EXPECT_EQ(excerpt(json{{"a", {1, 2}}}), "a nested object");
  const std::string brackets(1'000'000, '[');
  EXPECT_EQ(excerpt(json::parse(brackets + std::string(brackets.size(), ']'))), "a nested array");
  EXPECT_EQ(excerpt(std::string(118, 'x')), '"' + std::string(118, 'x') + '"');
  EXPECT_EQ(excerpt(std::string(119, 'x')), '"' + std::string(116, 'x') + "...");
}

// A stranger's file that nests without end would end the program when it is taken apart.
TEST(JsonText, DeepNestingIsNoJson) {
  const auto nested = [](std::size_t deep) {
    return std::string(deep, '[') + std::string(deep, ']');
  };
  for (const auto& parse :
       {+[](const std::string& text) { json_in(text); },
        +[](const std::string& text) { ordered_json_in(text); }}) {
    EXPECT_NO_THROW(parse(nested(60)));
    EXPECT_THROW(parse(nested(70)), nlohmann::json::exception);
    EXPECT_THROW(parse(nested(1000000)), nlohmann::json::exception);
    EXPECT_THROW(parse(std::string(1000000, '[')), nlohmann::json::exception);
    EXPECT_THROW(parse("{\"a\": " + nested(1000000) + "}"), nlohmann::json::exception);
  }
}

// nlohmann's parser takes a NUL byte for the end: what stands behind it would be passed over.
TEST(JsonText, ANulByteEndsNoText) {
  using namespace std::string_literals;
  const JsonSource source{.name = "plan.json", .whole = "the plan"};
  for (const std::string& text : {"{\"a\": 1}\0{\"b\": 2}"s, "{}\0"s, "\0{}"s, "[1,\0 2]"s}) {
    EXPECT_THROW(json_in(text), nlohmann::json::exception);
    EXPECT_THROW(ordered_json_in(text), nlohmann::json::exception);
    EXPECT_THAT(
        test::refusal([&] { (void)parse_json(text, source); }),
        testing::AllOf(testing::HasSubstr("plan.json: not JSON"), testing::HasSubstr("NUL byte")));
  }
  EXPECT_EQ(json_in("{\"a\": \"\\u0000\"}")["a"], "\0"s);
}

}  // namespace
}  // namespace paradyse
