// That a file can be written is known before anything is done for it.
#include "src/plan/base/disk_file.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class WritableTest : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(folder_ / "file") << "x"; }

  test::Folder folder_;
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
    EXPECT_THAT(why_no_file_in(folder_ / "file", makes_folders), HasSubstr("is not a folder"));
    // where nobody can make a file, root neither
    EXPECT_THAT(why_not_writable("/proc/new", makes_folders), HasSubstr("/proc cannot be written"));
  }
  EXPECT_THAT(why_no_file_in(folder_ / "file" / "a", true), HasSubstr("is not a folder"));
  EXPECT_THAT(why_no_file_in("/proc/a/b", true), HasSubstr("/proc cannot be written"));
  fs::create_symlink(folder_ / "nowhere", folder_ / "link");
  EXPECT_THAT(why_no_file_in(folder_ / "link", true), HasSubstr("is not a folder"));
  EXPECT_THAT(why_not_writable(folder_ / std::string(300, 'n')), HasSubstr("cannot be written"));
  if (::geteuid() != 0) {  // whom permissions do not bind
    fs::create_directory(folder_ / "closed");
    fs::permissions(folder_ / "closed", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THAT(why_not_writable(folder_ / "closed" / "new"), HasSubstr("cannot be written"));
  }
}

std::string refusal(const fs::path& file) {
  return test::refusal([&] { content_of_named(file, "give a file"); });
}

// Neither a pipe that nobody writes nor a device without an end is waited for.
TEST_F(WritableTest, WhatCannotBeRead) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(folder_ / "nowhere", folder_ / "link");
  fs::create_symlink("loop", folder_ / "loop");
  for (const auto& [file, why] : std::vector<std::pair<fs::path, std::string>>{
           {folder_, "it is a folder"},
           {"/dev/zero", "it is a device"},
           {"/dev/null", "it is a device"},
           {folder_ / "loop", "Too many levels of symbolic links"}}) {
    EXPECT_EQ(why_not_readable(file).substr(0, why.size()), why);
    EXPECT_THAT(
        refusal(file),
        AllOf(StartsWith(file.string() + ": cannot be read: " + why), HasSubstr("; give a file")));
  }
  EXPECT_THAT(refusal(pipe), HasSubstr("it is a pipe without a writer; give a file"));
  EXPECT_THAT(why_not_readable(pipe), HasSubstr("save it to a file"));
  for (const fs::path& file : {folder_ / "nowhere", folder_ / "link", folder_ / "file" / "x"}) {
    EXPECT_EQ(why_not_readable(file), "it is not there");
    EXPECT_EQ(content_of(file), std::nullopt);
    EXPECT_THAT(refusal(file), HasSubstr(": is not there; give a file"));
  }
}

// Nor is the reader of a pipe that is written; one that is there keeps its writer.
TEST_F(WritableTest, APipeIsWrittenWhereSomebodyReads) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(why_not_writable(pipe), "is a pipe without a reader: start its reader first");
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_EQ(why_not_writable(pipe), "");
  std::ofstream(pipe) << "text";
  char text[5] = "";
  EXPECT_EQ(::read(reader, text, 5), 4);
  EXPECT_STREQ(text, "text");
  EXPECT_EQ(::read(reader, text, 5), -1);  // not 0, the end: a writer is there
  ::close(reader);
}

// As a shell's <(...) is one.
TEST_F(WritableTest, APipeThatIsWrittenIsReadToItsEnd) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string text(200'000, 'x');  // more than a pipe holds
  std::thread writer([&] { std::ofstream(pipe) << text; });
  EXPECT_EQ(content_of_named(pipe, "give a file"), text);
  writer.join();
}

// Nor is a file without end, or one that says that it is long and takes no room.
TEST_F(WritableTest, WhatIsTooLongIsNotRead) {
  fs::resize_file(folder_ / "file", std::uintmax_t{1} << 40);
  EXPECT_THAT(
      [&] { content_of(folder_ / "file"); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("1099511627776 bytes"), HasSubstr("at most 1073741824"))));
  std::ofstream(folder_ / "ten") << "0123456789";
  EXPECT_EQ(content_of(folder_ / "ten", 10), "0123456789");
  EXPECT_THROW(content_of(folder_ / "ten", 9), std::runtime_error);
  // of no size that is known before
  EXPECT_THROW(content_of("/proc/self/status", 9), std::runtime_error);
}

TEST_F(WritableTest, TheBeginningOfAFile) {
  EXPECT_EQ(beginning_of(folder_ / "file", 5), "x");
  std::ofstream(folder_ / "long") << "0123456789";
  EXPECT_EQ(beginning_of(folder_ / "long", 4), "0123");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  for (const fs::path& none :
       {folder_ / "pipe", folder_ / "nowhere", fs::path(folder_), fs::path("/dev/zero")}) {
    EXPECT_EQ(beginning_of(none, 4), "");
  }
  EXPECT_THAT(  // whose first bytes nobody can read
      [] { (void)beginning_of("/proc/self/mem", 4); },
      testing::ThrowsMessage<std::runtime_error>(
          "/proc/self/mem: cannot be read: Input/output error"));
}

TEST_F(WritableTest, AFileIsReplacedBehindItsLinks) {
  fs::create_directory(folder_ / "a");
  fs::create_symlink("../file", folder_ / "a" / "one");
  fs::create_symlink("a/one", folder_ / "two");
  replace_file(folder_ / "two", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "two"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "a" / "one"));
  EXPECT_EQ(content_of(folder_ / "file"), "new");
  fs::create_symlink("new_file", folder_ / "to_nothing");
  replace_file(folder_ / "to_nothing", "text");
  EXPECT_EQ(content_of(folder_ / "new_file"), "text");
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THROW(replace_file(folder_ / "loop", "text"), std::runtime_error);
}

// What a user has beside it stays, whatever its name, and what such a name leads to.
TEST_F(WritableTest, NoOtherFileIsWrittenOver) {
  const std::string pid = std::to_string(::getpid());
  std::ofstream(folder_ / "file.partial") << "mine";
  fs::create_symlink("file.partial", folder_ / ("file." + pid + ".partial"));
  replace_file(folder_ / "file", "new");
  EXPECT_EQ(content_of(folder_ / "file"), "new");
  EXPECT_EQ(content_of(folder_ / "file.partial"), "mine");
  EXPECT_TRUE(fs::is_symlink(folder_ / ("file." + pid + ".partial")));
}

// Of a process that is killed while it writes nothing is left, where files can do without a name.
TEST_F(WritableTest, AKilledWriterLeavesNothing) {
  const int nameless = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (nameless < 0) {
    GTEST_SKIP() << "this file system has no files without names (O_TMPFILE)";
  }
  ::close(nameless);
  const pid_t writer = ::fork();
  if (writer == 0) {
    const int descriptor = new_file_beside(folder_ / "file").second;
    if (write_all(descriptor, "half of it")) {
      ::kill(::getpid(), SIGKILL);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, testing::ElementsAre("file"));
  EXPECT_EQ(content_of(folder_ / "file"), "x");
}

TEST_F(WritableTest, WhatIsNoFileStaysWhatItIs) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(replace_file(pipe, "text"), std::runtime_error);  // nobody reads it
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  replace_file(pipe, "text");
  char text[5] = "";
  EXPECT_EQ(::read(reader, text, 5), 4);
  EXPECT_STREQ(text, "text");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_THROW(replace_file(folder_, "text"), std::runtime_error);
  EXPECT_THROW(replace_file("/dev/full", "text"), std::runtime_error);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

}  // namespace
}  // namespace paradyse
