// Files of a stranger: each reader is given each kind of file that is none, and its own files
// damaged in each way.  It reads them or refuses them, soon and in little memory; nothing else ever
// happens. No torch: the sanitizers see these readers, too.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/run/readers.h"
#include "tests/support/folder.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using test::Reader;
using test::readers;
using testing::HasSubstr;

const bool kLong = std::getenv("PARADYSE_TEST_LONG") != nullptr;

// Something at a path that is no file that ends.
struct Stranger {
  const char* what;
  std::function<void(const fs::path& at)> make;
};

void make_socket(const fs::path& at) {
  const int handle = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", at.c_str());
  ASSERT_EQ(::bind(handle, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << at;
  ::close(handle);
}

const std::vector<Stranger>& strangers() {
  static const std::vector<Stranger> all = {
      {"a pipe", [](const fs::path& at) { ASSERT_EQ(::mkfifo(at.c_str(), 0600), 0); }},
      {"a folder", [](const fs::path& at) { fs::create_directory(at); }},
      {"a device without end", [](const fs::path& at) { fs::create_symlink("/dev/zero", at); }},
      {"a full device", [](const fs::path& at) { fs::create_symlink("/dev/full", at); }},
      {"a socket", make_socket},
      {"a link to itself", [](const fs::path& at) { fs::create_symlink(at, at); }},
      {"a link to nothing", [](const fs::path& at) { fs::create_symlink("nothing", at); }},
      {"a terabyte of nothing",
       [](const fs::path& at) {
         std::ofstream(at) << "";
         fs::resize_file(at, std::uintmax_t{1} << 40);
       }},
      {"a brace and a terabyte of nothing", [](const fs::path& at) {
         std::ofstream(at) << "{";
         fs::resize_file(at, std::uintmax_t{1} << 40);
       }}};
  return all;
}

std::int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

enum class Outcome { read, refused };

// Post: nothing but these two, soon, in little memory, and of what is refused the message is short
// and says where.
Outcome outcome(const Reader& reader, const fs::path& file, const std::string& what) {
  constexpr double kMostSeconds = test::kSanitized ? 20 : 5;
  constexpr std::int64_t kMostBytes = std::int64_t{test::kSanitized ? 4 : 1} << 30;
  const auto begin = std::chrono::steady_clock::now();
  Outcome outcome = Outcome::read;
  std::string message;
  try {
    reader.read(file);
  } catch (const std::invalid_argument& error) {
    message = error.what();
  } catch (const std::runtime_error& error) {
    message = error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << reader.name << ": " << what << ": " << typeid(error).name() << " "
                  << error.what();
  }
  if (!message.empty()) {
    outcome = Outcome::refused;
    EXPECT_THAT(message, HasSubstr(file.parent_path().filename().string())) << what;
    EXPECT_LT(message.size(), 3000U) << reader.name << ": " << what << message.substr(0, 500);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), kMostSeconds) << reader.name << ": " << what;
  EXPECT_LT(peak_bytes(), kMostBytes) << reader.name << ": " << what;
  return outcome;
}

class HostileFiles : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    fs::create_directories(file().parent_path());
    put(reader().sound);
  }

  [[nodiscard]] const Reader& reader() const { return readers()[GetParam()]; }
  [[nodiscard]] fs::path file() const { return folder_ / "given" / reader().name; }
  void put(std::string_view text) const { test::write_bytes(file(), std::string(text)); }

  Outcome outcome_of(std::string_view text, const std::string& what) const {
    put(text);
    return outcome(reader(), file(), what);
  }

 private:
  test::Folder folder_;
};

std::string name_of(const testing::TestParamInfo<std::size_t>& info) {
  std::string name = readers()[info.param].name;
  std::ranges::replace_if(name, [](char letter) { return std::isalnum(letter) == 0; }, '_');
  return name;
}

TEST_P(HostileFiles, WhatIsNoFileIsRefused) {
  for (const Stranger& stranger : strangers()) {
    fs::remove_all(file());
    stranger.make(file());
    const Outcome is = outcome(reader(), file(), stranger.what);
    const bool missing = std::string_view(stranger.what).starts_with("a link");
    // Of a run folder what is missing is missing; a tokenizer may be anybody's.
    std::error_code error;
    const bool longer = reader().any_end && fs::is_regular_file(file(), error);
    if (!reader().optional && !longer && !(missing && reader().name.starts_with("run/"))) {
      EXPECT_EQ(is, Outcome::refused) << reader().name << ": " << stranger.what;
    }
    fs::remove_all(file());
  }
}

TEST_P(HostileFiles, WhatNestsIsRefused) {
  for (const std::string& opening :
       {std::string("["), std::string("{\"a\":"), std::string("{a=")}) {
    for (const std::string& before :
         {std::string(), std::string("a = "), std::string("{\"text\": ")}) {
      std::string text = before;
      for (int i = 0; i < (kLong ? 1'000'000 : 100'000); ++i) {
        text += opening;
      }
      outcome_of(text, "nests by " + opening);
    }
  }
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) {
    dotted += ".a";
  }
  outcome_of(dotted + " = 1\n", "a key of 100000 parts");
  outcome_of("[" + dotted + "]\n", "a table of 100000 parts");
  for (const std::string three : {"\"\"\"", "'''"}) {  // a string may end in quotes of its own
    for (const std::string& more : {three.substr(0, 1), three.substr(0, 2)}) {
      outcome_of(
          "a = {b = " + three + "x" + three + more + ", " + dotted + " = 1}\n",
          "a key of 100000 parts behind a string that ends in " + three + more);
    }
  }
}

TEST_P(HostileFiles, WhatIsCutOffIsReadOrRefused) {
  const std::string& sound = reader().sound;
  const std::size_t stride = kLong ? 1 : std::max<std::size_t>(1, sound.size() / 20);
  for (std::size_t size = 0; size < sound.size(); size += stride) {
    outcome_of(std::string_view(sound).substr(0, size), "cut to " + std::to_string(size));
  }
}

// Numbers, where the sound file has one.
TEST_P(HostileFiles, NumbersOfAnySizeAreReadOrRefused) {
  constexpr const char* kNumbers[] = {
      "2147483647",
      "2147483648",
      "9223372036854775807",
      "18446744073709551616",
      "-1",
      "0",
      "-9223372036854775808",
      "1e308",
      "-1e308",
      "1e999",
      "0.5",
      "NaN",
      "nan",
      "inf",
      "null",
      "[]",
      "{}",
      "\"x\"",
      "true"};
  const std::string& sound = reader().sound;
  if (reader().binary) {
    return;
  }
  constexpr std::string_view kDigits = "0123456789.+-eE_";
  int count = 0;
  for (std::size_t at = 0; at < sound.size();) {
    const bool begins = std::isdigit(static_cast<unsigned char>(sound[at])) != 0 &&
                        (at == 0 || std::isalnum(static_cast<unsigned char>(sound[at - 1])) == 0);
    if (!begins) {
      ++at;
      continue;
    }
    const std::size_t end = std::min(sound.find_first_not_of(kDigits, at), sound.size());
    for (const char* const number : kNumbers) {
      if (!kLong && ++count % 3 != 0) {
        continue;
      }
      std::string text = sound;
      text.replace(at, end - at, number);
      if (reader().name == "state.json") {  // sealed again, as who means harm would
        text = test::sealed(text);
      }
      outcome_of(text, "byte " + std::to_string(at) + " " + number);
    }
    at = end;
  }
}

// The bytes of binary files, each as anything.
TEST_P(HostileFiles, BytesOfAnyValueAreReadOrRefused) {
  const std::string& sound = reader().sound;
  const std::size_t stride = kLong ? 1 : std::max<std::size_t>(1, sound.size() / 20);
  for (std::size_t at = 0; at < sound.size(); at += stride) {
    for (const char byte : {'\0', '\x7f', '\x80', '\xff', '"', '\n', '\x1b'}) {
      std::string text = sound;
      text[at] = byte;
      outcome_of(text, "byte " + std::to_string(at));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Readers, HostileFiles, testing::Range<std::size_t>(0, readers().size()), name_of);

TEST(HostileFilesOfTheTest, AreSoundBeforeTheyAreDamaged) {
  const fs::path corpus = fs::path(PARADYSE_SOURCE_DIR) / "tests/fuzz/corpus";
  std::set<std::string> used = {"rendezvous"};  // conversation_test.cc
  for (const Reader& reader : readers()) {
    std::map<std::string, std::string> accepted = {{"sound", reader.sound}};
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(corpus / test::corpus_name(reader), none)) {
      accepted[entry.path().filename().string()] = content_of(entry.path()).value();
      used.insert(test::corpus_name(reader));
    }
    for (const auto& [name, content] : accepted) {
      const test::Folder folder;
      const fs::path file = folder / "given" / reader.name;
      fs::create_directories(file.parent_path());
      test::write_bytes(file, content);
      EXPECT_NO_THROW(reader.read(file)) << reader.name << ": " << name;
    }
  }
  for (const auto& entry : fs::directory_iterator(corpus)) {
    EXPECT_TRUE(used.contains(entry.path().filename().string())) << entry.path();
  }
}

}  // namespace
}  // namespace paradyse
