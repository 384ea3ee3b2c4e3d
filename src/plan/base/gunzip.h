// Files that gzip has packed.
#pragma once

#include <cstddef>
#include <memory>
#include <streambuf>
#include <string>
#include <vector>

namespace paradyse {

// Where `content` begins as gzip's does, what was packed, a block at a time: a few packed bytes may
// stand for a gigabyte.  Else `content` as it is.  Reading throws std::invalid_argument, naming
// `source`, for a file that is cut off or damaged, and beyond 1 GiB.
class Gunzipped : public std::streambuf {
 public:
  Gunzipped(std::string content, std::string source);
  ~Gunzipped() override;
  Gunzipped(const Gunzipped&) = delete;
  Gunzipped& operator=(const Gunzipped&) = delete;

 private:
  struct Inflating;

  int_type underflow() override;

  std::string content_;
  std::string source_;
  std::unique_ptr<Inflating> inflating_;  // none: nothing was packed
  std::vector<char> block_;
  std::size_t bytes_ = 0;  // unpacked so far
};

}  // namespace paradyse
