// PlainJson against nlohmann's parser: the same events for what it takes, and it takes no more.
#include "src/run/data/plain_json.h"

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace paradyse {
namespace {

using nlohmann::json;

// What a parser tells, as text.
class Heard final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return hear("null"); }
  bool boolean(bool truth) override { return hear(truth ? "true" : "false"); }
  bool number_integer(std::int64_t number) override { return hear(fmt::format("i{}", number)); }
  bool number_unsigned(std::uint64_t number) override { return hear(fmt::format("u{}", number)); }
  bool number_float(double number, const std::string& digits) override {
    return hear(fmt::format("f{:a} {}", number, digits));
  }
  bool string(std::string& text) override { return hear("s" + std::exchange(text, "")); }
  bool binary(json::binary_t& /*bytes*/) override { return hear("binary"); }
  bool start_object(std::size_t size) override { return hear(fmt::format("{{{}", size)); }
  bool key(std::string& text) override { return hear("k" + std::exchange(text, "")); }
  bool end_object() override { return hear("}"); }
  bool start_array(std::size_t size) override { return hear(fmt::format("[{}", size)); }
  bool end_array() override { return hear("]"); }
  bool parse_error(
      std::size_t /*byte*/,
      const std::string& /*last*/,
      const json::exception& /*error*/) override {
    return false;
  }

  std::vector<std::string> events;

 private:
  bool hear(std::string event) {
    events.push_back(std::move(event));
    return true;
  }
};

// Whether PlainJson takes a text, which then is the parser's.
bool taken(const std::string& text) {
  Heard plain;
  if (!PlainJson(text, plain).read()) {
    return false;
  }
  Heard parsed;
  EXPECT_TRUE(json::sax_parse(text, &parsed)) << text;
  EXPECT_EQ(plain.events, parsed.events) << text;
  return true;
}

TEST(PlainJson, TakesWhatDataHas) {
  for (
      const char* const text :
      {R"({"tokens": [1, 2, 3], "labels": [-100, 2, 3]})",
       R"({"tokens":[],"text":"","meta":{},"a":null,"b":true,"c":false})",
       " \t\r\n{ \"tokens\" : [ 0 , 12 ,999999999999999999 ] } \n",
       R"({"text": "a \"quoted\" \\ \/ \b\f\n\r\t word", "score": 0.93, "x": [1.5, -2e3, 1E-7, 3.0]})",
       R"({"text": "\u00e9\u4e2d\u0000\u007f\uFFFD", "ü": "größer 中文 😀"})",
       R"({"a": [[1], [{"b": [2]}]], "a": 3})",
       "[]",
       "3",
       R"("x")",
       "\"\x7f\xc2\x80\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\""}) {
    EXPECT_TRUE(taken(text)) << text;
  }
}

TEST(PlainJson, LeavesTheRestToTheParser) {
  for (const std::string& text : std::initializer_list<std::string>{
           "",
           " ",
           "{",
           "[1,]",
           "[,1]",
           "[1 2]",
           "{\"a\" 1}",
           "{\"a\":1,}",
           "{a:1}",
           "[1]]",
           "[1] x",
           "[01]",
           "[-]",
           "[-0]",
           "[+1]",
           "[.5]",
           "[1.]",
           "[1e]",
           "[1e+]",
           "[1e999]",
           "[1234567890123456789]",
           "[NaN]",
           "nul",
           "truex",
           "\"a",
           "\"\\",
           "\"\\x\"",
           "\"\\u12\"",
           "\"\\u12g4\"",
           "\"\\ud83d\\ude00\"",
           "\"\\udc00\"",
           "\"a\nb\"",
           "\"\xc0\x80\"",
           "\"\xe0\x80\x80\"",
           "\"\xed\xa0\x80\"",
           "\"\xf4\x90\x80\x80\"",
           "\"\xf5\x80\x80\x80\"",
           "\"\x80\"",
           "\"\xe4\xb8",
           "\xef\xbb\xbf[1]",
           std::string("[1\0]", 4),
           std::string("[1]\0", 4),
           std::string("\"\\\0\"", 4)}) {
    EXPECT_FALSE(taken(text)) << text;
  }
  EXPECT_TRUE(taken(std::string(32, '[') + std::string(32, ']')));
  EXPECT_FALSE(taken(std::string(33, '[') + std::string(33, ']')));
}

// Any byte of a line changed, left out or put in: taken or not, there are no other events.
TEST(PlainJson, AgreesOnDamagedLines) {
  const std::string lines[] = {
      R"({"tokens": [1, -2, 30, 0.5e-3], "text": "a\n\u00e9\\ü中😀", "x": {"y": [true, null]}})",
      R"({"input_ids":[5,6],"labels":[-100,6],"attention_mask":[1,1]})"};
  const std::string bytes = std::string("{}[]\",:\\u09aeE+-. \t\n\x7f\x80\xc3\xed\xf4\xff") + '\0';
  std::int64_t kept = 0;
  for (const std::string& line : lines) {
    for (std::size_t i = 0; i <= line.size(); ++i) {
      kept += taken(line.substr(0, i)) ? 1 : 0;
      kept += i < line.size() && taken(std::string(line).erase(i, 1)) ? 1 : 0;
      for (const char byte : bytes) {
        kept += taken(std::string(line).insert(i, 1, byte)) ? 1 : 0;
        if (i < line.size()) {
          std::string changed = line;
          changed[i] = byte;
          kept += taken(changed) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(kept, 500);
  std::mt19937 draw(1);
  const std::string alphabet = "{}[]\",:\\u0123456789eE+-. tfn";
  for (int i = 0; i < 200000; ++i) {
    std::string text;
    for (auto size = draw() % 12; size > 0; --size) {
      text += alphabet[draw() % alphabet.size()];
    }
    taken(text);
  }
}

}  // namespace
}  // namespace paradyse
