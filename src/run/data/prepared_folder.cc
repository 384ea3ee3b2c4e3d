#include "src/run/data/prepared_folder.h"

#include <stdexcept>

#include <fmt/format.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/refuse.h"
#include "src/run/data/tokenizer_files.h"

namespace paradyse {
namespace {

constexpr const char* kFormat = "paradyse-data";
constexpr std::int64_t kVersion = 1;

}  // namespace

bool is_prepared(const std::filesystem::path& folder) {
  // By its beginning: a data.json of somebody else's may be long, and ours may be damaged.
  constexpr std::size_t kLooked = 4096;
  const std::filesystem::path file = folder / "data.json";
  return beginning_of(file, kLooked).find('"' + std::string(kFormat) + '"') != std::string::npos;
}

PreparedFolder read_prepared(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "data.json";
  const JsonSource source{.name = file.string(), .whole = "the description of the data"};
  PreparedFolder prepared{.path = folder};
  try {
    const nlohmann::json json = parse_json(content_of(file).value_or(""), source);
    const JsonNode data(json, source);
    if (const auto version = data.at("version").integer<std::int64_t>(); version != kVersion) {
      data.at("version").fail(fmt::format(
          "is {}; this program reads version {}: prepare the data again with its paradyse-data",
          version,
          kVersion));
    }
    prepared.vocab_size = data.at("vocab_size").integer<std::int64_t>(1);
    if (data.has("tokenizer") && !data.is_null("tokenizer")) {
      const JsonNode tokenizer = data.at("tokenizer");
      if (tokenizer.has("name") && !tokenizer.is_null("name")) {
        prepared.tokenizer = tokenizer.at("name").text();
      }
      if (tokenizer.has("sha256") && !tokenizer.is_null("sha256")) {
        prepared.tokenizer_sha256 = tokenizer.at("sha256").text();
      }
    }
    if (data.has("sources")) {
      for (const JsonNode& one : data.at("sources").elements()) {
        prepared.sources.push_back(one.text());
      }
    }
    for (const JsonNode& one : data.at("shards").elements()) {
      PreparedFolder::Shard shard{
          .name = one.at("name").text(),
          .documents = one.at("documents").integer<std::int64_t>(0),
          .tokens = one.at("tokens").integer<std::int64_t>(0),
          .labels = one.at("labels").integer<std::int64_t>(0),
          .sha256 = one.at("sha256").text()};
      if (shard.name.empty() || shard.name.find('/') != std::string::npos) {
        one.at("name").fail("is no name of a file in this folder");
      }
      prepared.shards.push_back(std::move(shard));
    }
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(error.what());
  }
  return prepared;
}

void expect_made_for(const PreparedFolder& folder, const DataOptions& options) {
  const std::string where = folder.path.string();
  if (folder.vocab_size > options.vocab) {
    refuse(
        where,
        fmt::format(
            "was prepared with a tokenizer of {} ids, but the model has {}; prepare the data with "
            "the model's tokenizer, or give the model that it was made for",
            folder.vocab_size,
            options.vocab));
  }
  const std::string models = folder.tokenizer_sha256.empty() || options.tokenizer_folder.empty()
                                 ? ""
                                 : tokenizer_sha256(options.tokenizer_folder);
  if (!models.empty() && folder.tokenizer_sha256 != models) {
    refuse(
        where,
        fmt::format(
            "was prepared with another tokenizer ({}, SHA-256 {}) than the model's (SHA-256 {}); "
            "prepare the data with the model's tokenizer, or give the model that it was made for",
            folder.tokenizer.empty() ? "no name" : folder.tokenizer,
            folder.tokenizer_sha256.substr(0, 16),
            models.substr(0, 16)));
  }
}

}  // namespace paradyse
