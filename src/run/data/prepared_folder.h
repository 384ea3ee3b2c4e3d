// A folder that paradyse-data wrote: data.json, written last, and shards of token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "paradyse/run/data.h"

namespace paradyse {

struct PreparedFolder {
  std::filesystem::path path = {};
  std::int64_t vocab_size = 0;
  std::string tokenizer = {};         // its name
  std::string tokenizer_sha256 = {};  // of its tokenizer.json; "": it has none
  std::vector<std::string> sources = {};
  struct Shard {
    std::string name;  // of NAME.bin
    std::int64_t documents = 0;
    std::int64_t tokens = 0;
    std::int64_t labels = 0;  // that count
    std::string sha256;       // of NAME.bin
  };
  std::vector<Shard> shards = {};
};

// Whether there is a data.json of paradyse-data.
bool is_prepared(const std::filesystem::path& folder);
// Throws std::runtime_error naming what of data.json is missing or wrong.
PreparedFolder read_prepared(const std::filesystem::path& folder);
// Throws std::runtime_error where it was made with a larger vocabulary, or another tokenizer, than
// the model has, as far as both are known.
void expect_made_for(const PreparedFolder& folder, const DataOptions& options);

}  // namespace paradyse
