#include "src/run/train/event_file.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>
#include <unistd.h>

#include "src/run/train/files.h"

namespace paradyse {
namespace {

// --- protocol buffers: a key of number and wire type, then the value -----------------------------

enum WireType : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}

// In the order of bytes of this machine, which is the file's (x86-64, AArch64).
template <typename Number>
std::string fixed(Number value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

std::string field(std::uint64_t number, WireType type, const std::string& value) {
  const std::string length = type == kBytes ? varint(value.size()) : "";
  return varint(number << 3U | type) + length + value;
}

// tensorflow/core/util/event.proto, summary.proto
std::string scalar(const std::string& tag, double value) {
  const std::string simple =
      field(1, kBytes, tag) + field(2, kFixed32, fixed(static_cast<float>(value)));
  return field(1, kBytes, simple);  // Summary.value
}

constexpr std::uint64_t kFileVersion = 3;
constexpr std::uint64_t kSummary = 5;
constexpr std::uint64_t kSessionLog = 7;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::uint32_t masked(std::uint32_t crc) { return (crc >> 15U | crc << 17U) + 0xa282ead8U; }

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      std::uint32_t rest = i;
      for (int bit = 0; bit < 8; ++bit) {
        rest = (rest >> 1U) ^ ((rest & 1U) != 0 ? 0x82f63b78U : 0U);
      }
      table[i] = rest;
    }
    return table;
  }();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xffU] ^ (crc >> 8U);
  }
  return ~crc;
}

std::string tfrecord(std::string_view data) {
  const std::string length = fixed(static_cast<std::uint64_t>(data.size()));
  return length + fixed(masked(crc32c(length))) + std::string(data) + fixed(masked(crc32c(data)));
}

namespace {

std::string event(std::int64_t step, const std::string& fields) {
  return tfrecord(
      field(1, kFixed64, fixed(now())) +
      field(2, kVarint, varint(static_cast<std::uint64_t>(step))) + fields);
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t step) : step_(step) {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  // Files are read in the order of their names.
  path_ = free_name(
      folder / fmt::format(
                   "events.out.tfevents.{:010}.{}.{}.{:06}",
                   static_cast<std::int64_t>(now()),
                   host,
                   ::getpid(),
                   step));
}

std::string EventFile::head() const {
  const std::string start = field(1, kVarint, varint(1));  // SessionLog.status: START
  return event(0, field(kFileVersion, kBytes, "brain.Event:2")) +
         event(step_ + 1, field(kSessionLog, kBytes, start));
}

std::string EventFile::record(std::int64_t step, const std::map<std::string, double>& scalars) {
  std::string values;
  for (const auto& [tag, value] : scalars) {
    if (std::isfinite(value)) {
      values += scalar(tag, value);
    }
  }
  return event(step, field(kSummary, kBytes, values));
}

}  // namespace paradyse
