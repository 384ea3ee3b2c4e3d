#include "src/plan/base/wrapped_text.h"

#include <sstream>

namespace paradyse {

std::string wrapped_text(const std::string& text, const std::string& start, std::size_t width) {
  std::istringstream words(text);
  std::string lines;
  std::string line = start;
  for (std::string word; words >> word;) {
    if (line.size() > start.size() && line.size() + 1 + word.size() > width) {
      lines += line + "\n";
      line = start;
    }
    line += line.size() > start.size() ? " " : "";
    line += word;
  }
  return lines + line + "\n";
}

}  // namespace paradyse
