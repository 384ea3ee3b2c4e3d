// Small files of a run that the disk refuses: they wait in memory and are tried again, so that a
// full disk neither ends a run nor loses what it had to say.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace paradyse {

class Unwritten {
 public:
  // Both try at once, and keep what is refused.  Throw std::runtime_error when more than
  // kMostBytes wait.
  void put(const std::filesystem::path& file, std::string text);     // in the place of the file
  void append(const std::filesystem::path& file, std::string text);  // all of it, or nothing

  // What waits to be appended to a file, which is then not written any more.
  std::string take_back(const std::filesystem::path& file);

  // Tries again what waits.  Why the first of it still does (file and the system's reason); "":
  // nothing waits.
  std::string flush();

  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

 private:
  struct Text {
    std::filesystem::path file;
    std::string text;
    bool appended = false;
  };
  void take(Text text);

  std::vector<Text> waiting_;  // a file once
};

}  // namespace paradyse
