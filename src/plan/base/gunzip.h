// Files that gzip has packed.
#pragma once

#include <string>

namespace paradyse {

// What was packed, where `content` begins as gzip's does; else `content` as it is.  Throws
// std::invalid_argument, naming `source`, for a file that is cut off or damaged, and for more than
// 1 GiB.
std::string gunzipped(std::string content, const std::string& source);

}  // namespace paradyse
