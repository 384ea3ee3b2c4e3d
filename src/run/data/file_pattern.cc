#include "src/run/data/file_pattern.h"

#include <algorithm>
#include <system_error>

#include <fnmatch.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/refuse.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (error && status.type() != fs::file_type::not_found) {
    refuse(path, "cannot be read: " + error.message());
  }
  return fs::exists(status);
}

// Those in `folder` ("": this one) that match `name`; a file has none.
void add_matches(const fs::path& folder, const fs::path& name, std::vector<fs::path>& found) {
  for (const fs::path& path : paths_in(folder.empty() ? "." : folder)) {
    const fs::path entry = path.filename();
    if (::fnmatch(name.c_str(), entry.c_str(), FNM_PERIOD) == 0) {
      found.push_back(folder / entry);
    }
  }
}

}  // namespace

bool is_pattern(const fs::path& path) {
  return path.native().find_first_of("*?[") != std::string::npos;
}

std::vector<fs::path> matches_of(const fs::path& pattern) {
  if (!is_pattern(pattern)) {
    return pattern.empty() || is_there(pattern) ? std::vector{pattern} : std::vector<fs::path>();
  }
  const fs::path name = pattern.filename();
  std::vector<fs::path> found;
  for (const fs::path& folder : matches_of(pattern.parent_path())) {
    if (is_pattern(name)) {
      add_matches(folder, name, found);
    } else if (is_there(folder / name)) {
      found.push_back(folder / name);
    }
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace paradyse
