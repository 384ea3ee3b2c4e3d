// TensorBoard's files, read back as TensorBoard reads them; tests/cli/report_test.py asks it
// itself.
#include "src/run/train/event_file.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/run/train/files.h"
#include "tests/support/folder.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::Pair;

TEST(Crc32c, IsTheOneOfTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

template <typename Number>
Number number_at(const std::string& bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// A message as [field number]: the bytes of its values, numbers as they stand.
std::multimap<std::uint64_t, std::string> fields_of(const std::string& message) {
  std::multimap<std::uint64_t, std::string> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= std::uint64_t{byte & 0x7fU} << static_cast<unsigned>(shift);
      if (byte < 0x80) {
        return value;
      }
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    std::string value;
    if ((key & 7U) == 0) {
      value = std::to_string(varint());
    } else {
      const std::uint64_t bytes = (key & 7U) == 1 ? 8 : (key & 7U) == 5 ? 4 : varint();
      value = message.substr(at, bytes);
      at += bytes;
    }
    fields.emplace(key >> 3U, value);
  }
  return fields;
}

// The messages of a file, whose checksums hold.
std::vector<std::multimap<std::uint64_t, std::string>> events_in(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  const std::string bytes = text.str();
  std::vector<std::multimap<std::uint64_t, std::string>> events;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto size = number_at<std::uint64_t>(bytes, at);
    const std::string record = bytes.substr(at, 16 + size);
    EXPECT_EQ(record, tfrecord(record.substr(12, size)));
    events.push_back(fields_of(record.substr(12, size)));
    at += record.size();
  }
  return events;
}

std::map<std::string, float> scalars_of(const std::multimap<std::uint64_t, std::string>& event) {
  std::map<std::string, float> scalars;
  for (const auto& [number, value] : fields_of(event.find(5)->second)) {
    const auto fields = fields_of(value);
    scalars[fields.find(1)->second] = number_at<float>(fields.find(2)->second, 0);
  }
  return scalars;
}

class EventFiles : public testing::Test {
 protected:
  test::Folder folder_;
};

TEST_F(EventFiles, HoldScalarsByStep) {
  EventFile file(folder_, 0);
  EXPECT_THAT(file.path().filename().string(), testing::StartsWith("events.out.tfevents."));
  append_text(
      file.path(),
      file.head() +
          EventFile::record(1, {{"train/loss", 2.5}, {"train/norm", NAN}, {"speed", 1e9}}));
  append_text(file.path(), EventFile::record(300, {{"train/loss", -0.5}}));
  const auto events = events_in(file.path());  // while it is open
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].find(3)->second, "brain.Event:2");
  EXPECT_GT(number_at<double>(events[0].find(1)->second, 0), 1.7e9);  // seconds since 1970
  EXPECT_EQ(events[2].find(2)->second, "1");
  EXPECT_THAT(scalars_of(events[2]), ElementsAre(Pair("speed", 1e9F), Pair("train/loss", 2.5F)));
  EXPECT_EQ(events[3].find(2)->second, "300");
  EXPECT_THAT(scalars_of(events[3]), ElementsAre(Pair("train/loss", -0.5F)));
}

// What was written of later steps counts no more: a session starts with the step after.
TEST_F(EventFiles, OfARunThatGoesOnStartWhereItDoes) {
  const auto begun = [this](std::int64_t step) {
    EventFile file(folder_, step);
    append_text(file.path(), file.head());
    return file;
  };
  const EventFile before = begun(0);
  const EventFile after = begun(6);
  const EventFile again = begun(6);  // in the same second, by the same process
  EXPECT_EQ(std::set({before.path(), after.path(), again.path()}).size(), 3U);
  EXPECT_LT(before.path(), after.path());
  const auto events = events_in(after.path());
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].find(2)->second, "7");
  EXPECT_EQ(fields_of(events[1].find(7)->second).find(1)->second, "1");  // SessionLog.START
}

}  // namespace
}  // namespace paradyse
