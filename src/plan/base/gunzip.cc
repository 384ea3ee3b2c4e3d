#include "src/plan/base/gunzip.h"

#include <stdexcept>
#include <utility>

#include <zlib.h>

namespace paradyse {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 30;  // bytes: a few packed ones may have no end
constexpr std::size_t kBlock = std::size_t{1} << 16;
constexpr int kGzip = 16 + MAX_WBITS;  // windowBits of zlib: gzip's head and checksum

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  throw std::invalid_argument(source + ": " + what);
}

}  // namespace

// A z_stream, ended whatever happens.
struct Gunzipped::Inflating {
  Inflating() { inflateInit2(&stream, kGzip); }
  ~Inflating() { inflateEnd(&stream); }
  Inflating(const Inflating&) = delete;
  Inflating& operator=(const Inflating&) = delete;

  z_stream stream{};
  bool ended = false;
};

Gunzipped::Gunzipped(std::string content, std::string source)
    : content_(std::move(content)), source_(std::move(source)) {
  if (!content_.starts_with("\x1f\x8b")) {
    setg(content_.data(), content_.data(), content_.data() + content_.size());
    return;
  }
  inflating_ = std::make_unique<Inflating>();
  inflating_->stream.next_in = reinterpret_cast<Bytef*>(content_.data());
  inflating_->stream.avail_in = static_cast<uInt>(content_.size());
  block_.resize(kBlock);
}

Gunzipped::~Gunzipped() = default;

Gunzipped::int_type Gunzipped::underflow() {
  if (!inflating_) {
    return traits_type::eof();
  }
  z_stream& stream = inflating_->stream;
  std::size_t unpacked = 0;
  while (unpacked == 0 && !inflating_->ended) {
    stream.next_out = reinterpret_cast<Bytef*>(block_.data());
    stream.avail_out = static_cast<uInt>(block_.size());
    const int state = inflate(&stream, Z_NO_FLUSH);
    unpacked = block_.size() - stream.avail_out;
    if (state == Z_STREAM_END) {
      inflating_->ended = stream.avail_in == 0;
      inflateReset(&stream);  // files that were put together are one
    } else if (state != Z_OK) {
      refuse(
          source_,
          state == Z_BUF_ERROR ? "is cut off: gzip's end is missing"
                               : "cannot be unpacked: gzip's data is damaged");
    }
  }
  bytes_ += unpacked;
  if (bytes_ > kMost) {
    refuse(source_, "unpacks to more than 1 GiB; split it");
  }
  setg(block_.data(), block_.data(), block_.data() + unpacked);
  return unpacked == 0 ? traits_type::eof() : traits_type::to_int_type(block_.front());
}

}  // namespace paradyse
