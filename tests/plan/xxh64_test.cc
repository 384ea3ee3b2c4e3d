#include "src/plan/base/xxh64.h"

#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace paradyse {
namespace {

std::string bytes(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += static_cast<char>((7 * i + 3) % 256);
  }
  return text;
}

std::string hex_of(std::string_view text) {
  Xxh64 hash;
  hash.add(text);
  return hash.hex();
}

// Values of the reference implementation (python-xxhash 3), for every way in which a text can end.
TEST(Xxh64, GivesTheReferenceValues) {
  EXPECT_EQ(hex_of(""), "ef46db3751d8e999");
  EXPECT_EQ(hex_of("a"), "d24ec4f1a98c6e5b");
  EXPECT_EQ(hex_of("abc"), "44bc2cf5ad770999");
  for (const auto& [count, expected] :
       {std::pair<std::size_t, const char*>{4, "9bb64b7d66ee9fda"},
        {7, "9a7b149959ce60d8"},
        {8, "dab99d95c6f90092"},
        {31, "a2aa5f33cc4a6119"},
        {32, "23c3c17ef790fd97"},
        {33, "50a7cfc7ba588784"},
        {63, "5e3e54b431c7493c"},
        {64, "0eb64b3ef6eeb01f"},
        {100, "a61f8d4c170fe531"},
        {1000, "5f235fa033f1a3fb"}}) {
    EXPECT_EQ(hex_of(bytes(count)), expected) << count;
  }
}

TEST(Xxh64, IsTheSameHoweverTheBytesCome) {
  const std::string text = bytes(1000);
  for (const std::size_t step : {1U, 3U, 31U, 32U, 33U, 64U, 500U}) {
    Xxh64 hash;
    for (std::size_t at = 0; at < text.size(); at += step) {
      hash.add(std::string_view(text).substr(at, step));
    }
    EXPECT_EQ(hash.hex(), "5f235fa033f1a3fb") << step;
  }
}

}  // namespace
}  // namespace paradyse
