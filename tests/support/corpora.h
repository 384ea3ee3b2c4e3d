// A folder of data for each test, and all that a corpus has, at once.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/data.h"
#include "tests/support/folder.h"
#include "tests/support/token_files.h"

namespace paradyse {

inline std::vector<Tokens> documents_of(const Corpus& corpus) {
  std::vector<Tokens> all;
  for (std::int64_t d = 0; d < corpus.size(); ++d) {
    all.push_back(corpus.document(d).tokens);
  }
  return all;
}

// None where no document has any.
inline std::vector<Tokens> labels_of(const Corpus& corpus) {
  std::vector<Tokens> all;
  for (std::int64_t d = 0; corpus.labelled() && d < corpus.size(); ++d) {
    all.push_back(corpus.document(d).labels.value());
  }
  return all;
}

inline std::vector<std::string> names_of(const Corpus& corpus) {
  std::vector<std::string> all;
  for (std::int64_t d = 0; d < corpus.size(); ++d) {
    all.push_back(corpus.name(d));
  }
  return all;
}

namespace test {

// Every test has a folder of its own.
class DataTest : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path path(const std::string& name) const { return folder_ / name; }

  void write_file(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(path(name).parent_path());
    write_bytes(path(name), bytes);
  }

  [[nodiscard]] DataOptions options(const std::vector<std::string>& names) const {
    DataOptions options;
    for (const std::string& name : names) {
      options.paths.push_back(path(name));
    }
    return options;
  }

  template <class... Parts>
  static void expect_refused(const DataOptions& options, const Parts&... parts) {
    EXPECT_THAT(
        [&] { (void)read_corpus(options); },
        testing::ThrowsMessage<std::runtime_error>(testing::AllOf(testing::HasSubstr(parts)...)));
  }

 private:
  Folder folder_;
};

}  // namespace test
}  // namespace paradyse
