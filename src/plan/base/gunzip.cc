#include "src/plan/base/gunzip.h"

#include <cstddef>
#include <stdexcept>
#include <vector>

#include <zlib.h>

namespace paradyse {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 30;  // bytes: a few packed ones may have no end
constexpr int kGzip = 16 + MAX_WBITS;                // windowBits of zlib: gzip's head and checksum

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  throw std::invalid_argument(source + ": " + what);
}

// A z_stream, ended whatever happens.
struct Inflating {
  Inflating() { inflateInit2(&stream, kGzip); }
  ~Inflating() { inflateEnd(&stream); }
  Inflating(const Inflating&) = delete;
  Inflating& operator=(const Inflating&) = delete;

  z_stream stream{};
};

}  // namespace

std::string gunzipped(std::string content, const std::string& source) {
  if (!content.starts_with("\x1f\x8b")) {
    return content;
  }
  Inflating inflating;
  z_stream& stream = inflating.stream;
  stream.next_in = reinterpret_cast<Bytef*>(content.data());
  stream.avail_in = static_cast<uInt>(content.size());
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    const int state = inflate(&stream, Z_NO_FLUSH);
    text.append(block.data(), block.size() - stream.avail_out);
    if (text.size() > kMost) {
      refuse(source, "unpacks to more than 1 GiB");
    }
    if (state == Z_STREAM_END) {
      if (stream.avail_in == 0) {
        return text;
      }
      inflateReset(&stream);  // files that were put together are one
    } else if (state != Z_OK) {
      refuse(
          source,
          state == Z_BUF_ERROR ? "is cut off: gzip's end is missing"
                               : "cannot be unpacked: gzip's data is damaged");
    }
  }
}

}  // namespace paradyse
