#include "src/plan/report/page.h"

#include <stdexcept>
#include <string_view>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"

namespace paradyse {

extern const char* const kPageTemplate;  // by cmake/Page.cmake

namespace {

// By which we know our pages again.
constexpr std::string_view kMark = "<!DOCTYPE html><html lang=\"en\"><head><!-- paradyse-report ";
constexpr std::string_view kData = "/*@data@*/";

}  // namespace

std::string page_of(const nlohmann::ordered_json& data) {
  std::string json;  // nothing in it ends the element that it stands in
  for (const char letter : json_line(data)) {
    json += letter == '<' ? std::string("\\u003c") : std::string(1, letter);
  }
  std::string page = kPageTemplate;
  return page.replace(page.find(kData), kData.size(), json);
}

void write_page(const nlohmann::ordered_json& data, const std::filesystem::path& file) {
  if (file.has_parent_path() && !std::filesystem::is_directory(file.parent_path())) {
    throw std::invalid_argument(
        file.string() + ": the folder " + file.parent_path().string() +
        " does not exist; make it, or give another file with --out");
  }
  // Not a device or a pipe, which would be waited for, and then replaced.
  const std::string why = why_not_readable(file);
  if (std::error_code error; !why.empty() && std::filesystem::exists(file, error)) {
    throw std::invalid_argument(file.string() + ": is no file to write a page to: " + why);
  }
  if (const std::string other = why_not_ours(file, "a report", kMark); !other.empty()) {
    throw std::invalid_argument(
        file.string() + ": " + other + "; give another file with --out, or move that one away");
  }
  replace_file(file, page_of(data));
}

}  // namespace paradyse
