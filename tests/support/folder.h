// A folder for the files of a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace paradyse::test {

// A new one, gone with its owner.
struct Folder : std::filesystem::path {
  Folder() : path(made()) {}
  ~Folder() { std::filesystem::remove_all(*this); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

 private:
  static std::string made() {
    std::string name = (std::filesystem::temp_directory_path() / "paradyse_test.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no folder can be made: " + name);
    }
    return name;
  }
};

}  // namespace paradyse::test
