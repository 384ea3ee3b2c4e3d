// That a file can be written is known before anything is done for it.
#include "src/plan/base/disk_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class WritableTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("paradyse_writable_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "file") << "x";
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(WritableTest, WhatCanBeWritten) {
  EXPECT_THAT(why_not_writable(folder_ / "new"), IsEmpty());
  EXPECT_THAT(why_not_writable(folder_ / "file"), IsEmpty());
  EXPECT_THAT(why_not_writable(folder_ / "a" / "b" / "new", true), IsEmpty());
  EXPECT_THAT(why_no_file_in(folder_), IsEmpty());
  EXPECT_THAT(why_no_file_in(folder_ / "a" / "b", true), IsEmpty());
  EXPECT_THAT(why_not_writable("/dev/null"), IsEmpty());
  fs::create_symlink(folder_ / "file", folder_ / "link");
  EXPECT_THAT(why_not_writable(folder_ / "link"), IsEmpty());
  // nothing is left behind, and what stood there still does
  std::size_t there = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    EXPECT_TRUE(entry.path().filename() == "file" || entry.path().filename() == "link");
    ++there;
  }
  EXPECT_EQ(there, 2U);
  EXPECT_EQ(content_of(folder_ / "file"), "x");
}

TEST_F(WritableTest, RelativeNamesAreOfTheWorkingFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  EXPECT_THAT(why_not_writable("new"), IsEmpty());
  EXPECT_THAT(why_not_writable("a/new", true), IsEmpty());
  EXPECT_THAT(why_not_writable("a/new"), HasSubstr("the folder a is not there; make it"));
  EXPECT_THAT(why_no_file_in("runs", true), IsEmpty());
  fs::current_path(before);
}

TEST_F(WritableTest, WhatCannot) {
  EXPECT_THAT(why_not_writable(folder_), HasSubstr("is a folder"));
  EXPECT_THAT(why_not_writable(folder_ / ""), HasSubstr("is a folder"));
  EXPECT_THAT(
      why_not_writable(folder_ / "a" / "new"),
      AllOf(HasSubstr((folder_ / "a").string()), HasSubstr("make it")));
  for (const bool makes_folders : {false, true}) {
    EXPECT_THAT(why_not_writable(folder_ / "file" / "new", makes_folders), Not(IsEmpty()));
    EXPECT_THAT(why_no_file_in(folder_ / "file", makes_folders), HasSubstr("is no folder"));
    // where nobody can make a file, root neither
    EXPECT_THAT(why_not_writable("/proc/new", makes_folders), HasSubstr("/proc cannot be written"));
  }
  EXPECT_THAT(why_no_file_in(folder_ / "file" / "a", true), HasSubstr("is no folder"));
  EXPECT_THAT(why_no_file_in("/proc/a/b", true), HasSubstr("/proc cannot be written"));
  fs::create_symlink(folder_ / "nowhere", folder_ / "link");
  EXPECT_THAT(why_no_file_in(folder_ / "link", true), HasSubstr("is no folder"));
  EXPECT_THAT(why_not_writable(folder_ / std::string(300, 'n')), HasSubstr("cannot be written"));
  if (::geteuid() != 0) {  // whom permissions do not bind
    fs::create_directory(folder_ / "closed");
    fs::permissions(folder_ / "closed", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THAT(why_not_writable(folder_ / "closed" / "new"), HasSubstr("cannot be written"));
  }
}

}  // namespace
}  // namespace paradyse
