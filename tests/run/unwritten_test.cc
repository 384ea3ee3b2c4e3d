#include "src/run/train/unwritten.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/run/train/files.h"
#include "tests/support/folder.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// What is refused is told, waits in its order, and is there when the disk takes it.
TEST(Unwritten, WaitsAndIsTriedAgain) {
  const test::Folder folder;
  const fs::path lines = folder / "later" / "lines";
  const fs::path plan = folder / "later" / "plan";
  Unwritten unwritten;
  unwritten.append(folder / "here", "one\n");
  EXPECT_EQ(unwritten.flush(), "");
  unwritten.append(lines, "one\n");
  unwritten.put(plan, "first");
  unwritten.put(plan, "second");
  unwritten.append(lines, "two\n");
  unwritten.append(folder / "here", "two\n");  // goes on beside them
  EXPECT_THAT(
      unwritten.flush(), AllOf(HasSubstr(lines.string()), HasSubstr("No such file or directory")));
  fs::create_directory(folder / "later");
  EXPECT_EQ(unwritten.flush(), "");
  EXPECT_EQ(file_text(lines), "one\ntwo\n");
  EXPECT_EQ(file_text(plan), "second");
  EXPECT_EQ(file_text(folder / "here"), "one\ntwo\n");
}

// A folder that is made for a file is tried again with it.
TEST(Unwritten, FoldersAreTriedAgain) {
  const test::Folder folder;
  const fs::path run = folder / "run";
  const fs::path file = run / "bad_steps" / "step";
  Unwritten unwritten;
  unwritten.put_in_folder(file, "documents");
  EXPECT_THAT(
      unwritten.flush(),
      AllOf(HasSubstr((run / "bad_steps").string()), HasSubstr("No such file or directory")));
  fs::create_directory(run);
  EXPECT_EQ(unwritten.flush(), "");
  EXPECT_EQ(file_text(file), "documents");
  EXPECT_THAT(unwritten.refused(), HasSubstr("bad_steps"));
  EXPECT_EQ(unwritten.refused(), "");
}

TEST(Unwritten, HasAnEnd) {
  const test::Folder folder;
  Unwritten unwritten;
  const std::string much(Unwritten::kMostBytes / 2, 'x');
  unwritten.append(folder / "none" / "file", much);
  EXPECT_THROW(unwritten.append(folder / "none" / "other", much + "xx"), std::runtime_error);
}

}  // namespace
}  // namespace paradyse
