// A file of scalars as TensorBoard reads it: TFRecords of Event messages (tensorflow/core/util/
// event.proto), written by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace paradyse {

class EventFile {
 public:
  // A name in `folder` that TensorBoard looks for and no file has.
  EventFile(const std::filesystem::path& folder, std::int64_t step);

  // How the file begins.  What other event files there say of steps after `step` no longer counts
  // (a run that goes on).
  [[nodiscard]] std::string head() const;

  // Numbers of a step, by tag ("train/loss"), as they stand in the file; what is no number is left
  // out.
  [[nodiscard]] static std::string record(
      std::int64_t step, const std::map<std::string, double>& scalars);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::int64_t step_;
};

// CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes);
// A record: its length, that masked checksum, `data`, and its masked checksum.
std::string tfrecord(std::string_view data);

}  // namespace paradyse
