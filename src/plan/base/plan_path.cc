#include "src/plan/base/plan_path.h"

#include <algorithm>
#include <cctype>

namespace paradyse {

std::string path_to(const std::string& path, const std::string& key) {
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_' || letter == '-';
  });
  if (!plain) {
    return path + "[\"" + key + "\"]";
  }
  return path + (path.empty() ? "" : ".") + key;
}

std::string path_to(const std::string& path, std::size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

}  // namespace paradyse
