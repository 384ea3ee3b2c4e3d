// No name of a stranger commands a terminal.
#include "src/plan/base/printable.h"

#include <string>

#include <gtest/gtest.h>

#include "src/plan/base/table_text.h"

namespace paradyse {
namespace {

TEST(Printable, ControlCharactersAreSpelled) {
  EXPECT_EQ(printable("plain text, \t\n"), "plain text, \t\n");
  EXPECT_EQ(printable("\x1b[2Ja\rb\x07\x7f"), "\\x1b[2Ja\\x0db\\x07\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(
      printable("\xc2\x9b"
                "2J"),
      "\\xc2\\x9b2J");  // ESC [ in one character
  EXPECT_EQ(
      printable("\xe2\x80\xae"
                "x"),
      "\\xe2\\x80\\xaex");  // turns the line round
  EXPECT_EQ(printable("\xc2"), "\\xc2");
  EXPECT_EQ(printable("\xff\xfe\xc0\xaf"), "\\xff\\xfe\\xc0\\xaf");  // no UTF-8
}

TEST(Printable, WordsOfAllLanguagesStay) {
  for (const std::string text : {"\u00e9\u00a0\u4e2d\u6587 \U0001f600", ""}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, TablesSpellTheirCells) {
  EXPECT_EQ(table_text({{"name"}, {"a\x1b[2J"}}, {}).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace paradyse
