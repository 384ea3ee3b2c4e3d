// Small files of a run that the disk refuses: they wait in memory and are tried again, so that a
// full disk neither ends a run nor loses what it had to say.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace paradyse {

class Unwritten {
 public:
  // They try at once, and keep what is refused.  Throw std::runtime_error when more than
  // kMostBytes wait.
  void put(const std::filesystem::path& file, std::string text);  // in the place of the file
  void put_in_folder(const std::filesystem::path& file, std::string text);  // and makes its folder
  void append(const std::filesystem::path& file, std::string text);         // all of it, or nothing

  // What waits to be appended to a file, which is then not written any more.
  std::string take_back(const std::filesystem::path& file);

  // Tries again what waits.  Why the first of it still does (file and the system's reason); "":
  // nothing waits.
  std::string flush();

  // Of a write that failed before its text was put here.
  void add_refused(const std::string& why) { refused_ = refused_.empty() ? why : refused_; }
  // Why the first was refused since this was asked last, even if it is written by now; "": none
  // was.
  std::string refused() { return std::exchange(refused_, ""); }

  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

 private:
  struct Text {
    std::filesystem::path file;
    std::string text;
    bool appended = false;
    bool makes_folder = false;
  };
  void take(Text text);

  std::vector<Text> waiting_;  // a file once
  std::string refused_;
};

}  // namespace paradyse
